"""How a text comes in pieces, for servers of every kind."""


def words(text):
    """A text in the pieces that a model would make of it."""
    return [text[start : start + 5] for start in range(0, len(text), 5)] or [""]


def token(piece, number, word="token", top="top_logprobs"):
    """A token with its logprob and one alternative less likely."""
    best = {word: piece, "logprob": -0.5}
    return best | {top: [best, {word: f"{piece}{number}", "logprob": -1.5}]}
