"""One canonical stream of letters and digits per text: what the matcher compares.

Folding goes character by character (so that every kept character has an origin in the text):
compatibility decomposition (NFKD), case folding, decomposition again, and then only letters and
digits are kept. Case, full-width and other compatibility forms, accents and other combining marks,
zero-width characters, spaces, hyphens, punctuation, line ends and markdown all vanish. Two texts
with the same NFKC case-folded letters have the same stream; the reverse does not hold (`é` = `e`).
"""

from __future__ import annotations

import functools
import unicodedata

_ASCII_KEPT = bytes(code for code in range(128) if chr(code).isalnum())
ASCII_DROPPED = bytes(set(range(128)) - set(_ASCII_KEPT))
"""The ASCII bytes that folding drops, for `bytes.translate(ASCII_LOWER, ASCII_DROPPED)`."""
ASCII_LOWER = bytes(ord(chr(code).lower()) if code < 128 else code for code in range(256))  # noqa: PLR2004 - the size of ASCII
"""A translation table for bytes: ASCII capitals to small letters, all else as it is."""

# Fillers count as letters (category Lo) but are invisible: a zero-width space by another name.
_INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")


@functools.lru_cache(maxsize=1 << 16)
def fold_character(character: str) -> str:
    """The letters and digits one character stands for: none, one, or several (`ﬁ` gives `fi`)."""
    folded = unicodedata.normalize(
        "NFKD", unicodedata.normalize("NFKD", character).casefold()
    ).casefold()
    folded = folded.replace("\N{LATIN SMALL LETTER DOTLESS I}", "i")  # as Turkish writes a small I
    return "".join(c for c in folded if c.isalnum() and c not in _INVISIBLE_LETTERS)


def fold(text: str) -> str:
    """The stream of letters and digits of a text; the empty string where it has none."""
    if text.isascii():
        return text.encode().translate(ASCII_LOWER, ASCII_DROPPED).decode()
    return "".join(map(fold_character, text))


def origins(text: str) -> list[int]:
    """For each character of `fold(text)`: the index of the character of `text` it comes from."""
    return [at for at, character in enumerate(text) for _ in fold_character(character)]
