"""Server-sent events, parsed as they arrive (WHATWG HTML, section 9.2.6), and lines of JSON.

Deliberately lenient in one point: an event that the end of the stream cuts off before its blank
line is handed out too, since many servers leave the last blank line away.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Events:
    """Feed bytes, cut anywhere; get the data of every event that is complete.

    Data is returned as bytes: whether it is UTF-8 is for the caller to say. Event names, ids and
    retry times are skipped: no OpenAI-compatible server gives them a meaning.
    """

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = b""
        self._data: list[bytes] = []
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes and return the data of each event they complete."""
        rest = self._rest + piece
        if self._begun and _LINE_END.search(piece) is None and not self._rest.endswith(b"\r"):
            self._rest = rest  # looked through once: a line without an end may be long
            return []
        if not self._begun:
            if len(rest) < len(_BOM) and _BOM.startswith(rest):
                self._rest = rest
                return []
            rest = rest.removeprefix(_BOM)
            self._begun = True
        events: list[bytes] = []
        start = 0
        for end in _LINE_END.finditer(rest):
            if end[0] == b"\r" and end.end() == len(rest):
                break  # its \n may be in the next piece
            self._line(rest[start : end.start()], events)
            start = end.end()
        self._rest = rest[start:]
        return events

    def finish(self) -> list[bytes]:
        """The stream is over: return the event that was not closed, if there is one."""
        events: list[bytes] = []
        rest, self._rest = self._rest, b""
        self._line(rest.removesuffix(b"\r"), events)
        if rest:
            self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            data, self._data = b"\n".join(self._data), []
            if data:
                events.append(data)
            return
        name, colon, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ") if colon else b"")


class Lines:
    """Lines of JSON, fed as bytes cut anywhere; empty lines are passed over."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes and return the lines they complete."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line for line in lines if line.strip()]

    def finish(self) -> list[bytes]:
        """The stream is over: return the line that was not closed, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest.strip() else []
