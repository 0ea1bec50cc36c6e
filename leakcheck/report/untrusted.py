"""Text of a target, made harmless for the eye: what it hides is shown, what is long is cut.

Escaping for HTML, Markdown or a terminal is each renderer's own business; this comes before it.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

import orjson

CONTEXT = 160
"""Characters kept on either side of a mark."""

MARK = 400
"""Characters kept of a mark."""

_DOTS = "..."
_LINE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Letters, marks and symbols by category, yet drawn as nothing: fillers and variation selectors.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_STACKED = 3  # combining marks on one letter that living languages need


def cut(text: str, limit: int) -> str:
    """The first `limit` characters, and how many more there were. Less than that note is long is
    never cut, so that the text may be longer than `limit` by as much.
    """
    note = f"... ({len(text) - limit} more characters)"
    return text if len(text) - limit <= len(note) else text[:limit] + note


def clipped(text: str, width: int) -> str:
    """A name in at most `width` characters, for a column of a table."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def visible(text: str) -> str:
    r"""The text on one line, with controls, bidi overrides and blanks written as `\x1b`, `\u202e`.

    What is left prints one glyph after the other in any terminal, file or browser, and encodes as
    UTF-8 (lone surrogates are written out too). Spaces of other widths become plain spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    stacked = 0
    for character in text:
        category = unicodedata.category(character)
        stacked = stacked + 1 if category in {"Mn", "Me"} else 0
        if character in _LINE:
            shown.append(_LINE[character])
        elif category == "Zs":
            shown.append(" ")
        elif not character.isprintable() or stacked > _STACKED or _is_blank(character):
            shown.append(_code(character))
        else:
            shown.append(character)
    return "".join(shown)


def plain(value: Any, limit: int = 200) -> str:
    """A JSON value in words: None is "not measured", whole numbers and texts as they are."""
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str | int):
        return visible(cut(str(value), limit))
    try:
        written = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        written = repr(value)
    return visible(cut(written, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A target's text around the place that matters, visible and cut; `marked` may be empty."""

    before: str
    marked: str
    after: str


def excerpt(text: str, mark: tuple[int, int] | None, context: int = CONTEXT) -> Excerpt:
    """Split `text` at the offsets `mark` (characters, clipped to the text) and cut what is far."""
    if mark is None:
        return Excerpt(before=visible(cut(text, 2 * context)), marked="", after="")
    start = min(max(mark[0], 0), len(text))
    end = min(max(mark[1], start), len(text))
    before, marked, after = text[:start], text[start:end], text[end:]
    if len(before) > context + len(_DOTS):
        before = _DOTS + before[-context:]
    if len(marked) > MARK:
        marked = cut(marked, MARK)
    if len(after) > context + len(_DOTS):
        after = after[:context] + _DOTS
    return Excerpt(before=visible(before), marked=visible(marked), after=visible(after))


def _is_blank(character: str) -> bool:
    point = ord(character)
    selector = 0xFE00 <= point <= 0xFE0F or 0xE0100 <= point <= 0xE01EF  # noqa: PLR2004 (Unicode blocks)
    return selector or character in _BLANK


def _code(character: str) -> str:
    point = ord(character)
    if point <= 0xFF:  # noqa: PLR2004 (two hexadecimal digits, as Python writes it)
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"  # noqa: PLR2004 (four digits)
