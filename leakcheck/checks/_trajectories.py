"""Two answers to one payload: where they part, and how narrow that was. Only what both have.

A cut or cancelled answer does not differ from a longer one. What is weighed is the *reference gap*
at the first difference: by how much the reference preferred its token to the one the other took,

    gap = log p_reference(its token) - log p_reference(the other's token)        in nats

Not the gap of the other answer, and not that to the reference's own second choice. Decoding is
compared with decoding alone: scoring a prompt rounds otherwise than writing it, honestly by up to
two nats, and targets that score (`prompt_logprobs`, `echo`) leave their prefix cache aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakcheck.records import Observation, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One answer against the reference.

    `at` is the index of the first differing token (of the first differing character where one of
    the two has neither log-probabilities nor token ids, or where only the texts differ), None when
    they agree as far as both go. `took` is what the other has there, empty where it had ended.
    `char` is the offset of the difference in the text of the other. `gap` in nats, None where
    nothing tells it; `censored`: it is at least that. `drift` is the largest difference of the
    log-probabilities of equal tokens before, in nats.
    """

    at: int | None
    took: str = ""
    unit: str = "token"
    char: int = 0
    gap: float | None = None
    censored: bool = False
    drift: float | None = None

    @property
    def way(self) -> tuple[str, int, str] | None:
        """Where and to what it parted: equal for answers that part in the same way."""
        return None if self.at is None else (self.unit, self.at, self.took)


def compare(reference: Observation, other: Observation) -> Comparison:
    """The other answer against the reference, over their common prefix: token by token, then their
    texts. Token ids tell apart what looks the same, such as parts of a character.
    """
    found = _by_logprobs(reference, other) or _by_ids(reference, other)
    if found is not None and found.at is not None:
        return found
    left, right = content(reference), content(other)
    at = _first_difference(left, right, reference, other)
    if at is None:
        return found or Comparison(at=None, unit="character")
    drift = found.drift if found else None
    return Comparison(at=at, took=right[at : at + 1], unit="character", char=at, drift=drift)


def _by_logprobs(reference: Observation, other: Observation) -> Comparison | None:
    ours, theirs = tokens(reference), tokens(other)
    if not (ours and theirs):
        return None
    names = [each.token for each in ours], [each.token for each in theirs]
    ids = token_ids(reference), token_ids(other)
    numbered = (len(ids[0]), len(ids[1])) == (len(ours), len(theirs))
    if numbered:
        at = _first_difference(ids[0], ids[1], reference, other)
    else:
        at = _first_difference(names[0], names[1], reference, other)
    together = min(len(ours), len(theirs)) if at is None else at
    drift = max(
        (
            abs(a.logprob - b.logprob)
            for a, b in zip(ours[:together], theirs[:together], strict=True)
        ),
        default=None,
    )
    if at is None:
        return Comparison(at=None, drift=drift)
    took = names[1][at] if at < len(theirs) else ""
    char = sum(len(name) for name in names[1][:at])
    told = at < len(ours) and took != ours[at].token  # which of those that look alike is not told
    gap, censored = _gap(ours[at], took) if told else (None, False)
    return Comparison(at=at, took=took, char=char, gap=gap, censored=censored, drift=drift)


def _by_ids(reference: Observation, other: Observation) -> Comparison | None:
    ours, theirs = token_ids(reference), token_ids(other)
    if not (ours and theirs):
        return None
    at = _first_difference(ours, theirs, reference, other)
    if at is None:
        return Comparison(at=None)
    took = f"token {theirs[at]}" if at < len(theirs) else ""
    text = content(other)
    char = _first_difference(content(reference), text, reference, other)
    return Comparison(at=at, took=took, char=len(text) if char is None else char)


def token_ids(observation: Observation) -> list[int]:
    """The ids of the tokens of an answer's content; empty where the target gave none."""
    return [i for c in observation.chunks if c.field == "content" for i in c.token_ids]


def tokens(observation: Observation) -> list[TokenLogprob]:
    """The tokens of an answer's content; empty where the target gave none."""
    return [t for c in observation.chunks if c.field == "content" for t in c.logprobs]


def content(observation: Observation) -> str:
    """The text of an answer's content."""
    return "".join(c.text for c in observation.chunks if c.field == "content")


def _first_difference(
    left: Sequence[object], right: Sequence[object], reference: Observation, other: Observation
) -> int | None:
    """Index of the first difference of two sequences over what both have.

    Where one is the beginning of the other, it has to have ended by its own choice (`stop`):
    a cut or cancelled answer does not differ.
    """
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    shorter, longer = (reference, other) if len(left) <= len(right) else (other, reference)
    if len(left) == len(right) or shorter.finish_reason != "stop" or longer.finish_reason is None:
        return None
    return min(len(left), len(right))


def _gap(reference: TokenLogprob, took: str) -> tuple[float | None, bool]:
    """The gap, and whether it is only a least one.

    That to the last alternative named where the other token is not among them; that to the best of
    the others where the other answer had ended: the token that ends an answer often has no name.
    """
    named: dict[str, float] = {}
    for token, logprob in reference.top:  # different tokens can look the same: parts of a character
        named[token] = max(logprob, named.get(token, logprob))
    if not took:
        others = [logprob for token, logprob in named.items() if token != reference.token]
        return (max(0.0, reference.logprob - max(others)), True) if others else (None, False)
    if took in named:
        return reference.logprob - named[took], False
    if not named:
        return None, False
    return reference.logprob - min(named.values()), True
