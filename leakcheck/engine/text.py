"""From tokens to text, one token at a time: whole characters only, stop strings trimmed."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 6
"""How much of the prompt's end the decoder sees, so that a first space is kept or dropped right."""

PARTIAL = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one choice as it grows.

    `length` counts the characters decoded so far, `released` those handed out. Text that may turn
    out to be the beginning of a stop string is held back; an incomplete UTF-8 sequence never shows.
    """

    def __init__(self, tokenizer: Tokenizer, context: list[int], stop: tuple[str, ...]) -> None:
        """`context`: the prompt that the text continues."""
        self.tokenizer = tokenizer
        self.stop = stop
        self.stopped = False
        self.length = 0
        self.released = 0
        self._held = ""
        self._decoder = DecodeStream(context[-CONTEXT_TOKENS:], skip_special_tokens=True)

    def feed(self, token: int) -> str:
        """Add a token; return what can be handed out. Sets `stopped` at a stop string."""
        fresh = self._decode(token)
        if not fresh:
            return ""
        self.length += len(fresh)
        if not self.stop:
            return self._release(fresh)
        text = self._held + fresh
        found = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return self._release(text[: min(found)])
        keep = longest_stop_prefix(text, self.stop)
        self._held = text[len(text) - keep :]
        return self._release(text[: len(text) - keep])

    def finish(self) -> str:
        """What was held back after all, when the answer ends without a stop string."""
        text, self._held = self._held, ""
        return self._release(text)

    def _release(self, text: str) -> str:
        self.released += len(text)
        return text

    def _decode(self, token: int) -> str:
        try:
            return self._decoder.step(self.tokenizer, token) or ""
        except Exception as error:
            # The library raises a bare Exception when an odd token changes the text before it
            # (vLLM meets the same); the stream goes on from this token.
            if "nvalid prefix" not in str(error):
                raise
            self._decoder = DecodeStream(skip_special_tokens=True)
            return self._decoder.step(self.tokenizer, token) or ""


def longest_stop_prefix(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = max(map(len, stops)) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[len(text) - size :]) for stop in stops):
            return size
    return 0


class TokenTexts:
    """The text of single tokens, as logprobs report them; special tokens by their name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Texts are made once, when first asked for."""
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._partial: set[int] = set()
        anchor = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._anchor = anchor
        self._anchor_text = tokenizer.decode(anchor, skip_special_tokens=False)

    def text(self, token: int) -> str:
        """The token in the middle of a text: with its leading space, if it has one."""
        if token not in self._texts:
            decoded = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
            if not decoded.startswith(self._anchor_text):
                decoded = self._tokenizer.decode([token], skip_special_tokens=False)
            else:
                decoded = decoded[len(self._anchor_text) :]
            if PARTIAL in decoded:  # its vocabulary form at least tells it from other such tokens
                decoded = self._tokenizer.id_to_token(token) or decoded
                self._partial.add(token)
            self._texts[token] = decoded
        return self._texts[token]

    def raw_bytes(self, token: int) -> list[int] | None:
        """Its UTF-8 bytes, or None for a token that is not whole characters by itself."""
        text = self.text(token)
        return None if token in self._partial else list(text.encode())
