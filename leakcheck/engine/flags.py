"""How the flags of the engine's commands are read: what is wrong with them is one sentence."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from leakcheck.engine.values import EngineError

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Its errors are EngineErrors of one sentence; there is no other way to be rid of its usage."""

    def error(self, message: str) -> NoReturn:
        """Raise EngineError: the flag, and what would be right."""
        name, _, what = message.removeprefix("argument ").partition(": ")
        found = _CHOICE.fullmatch(what)
        if found is None:
            raise EngineError(message.removeprefix("argument "))
        known = [each.strip("'") for each in found[2].split(", ")]
        close = difflib.get_close_matches(found[1], known, n=1, cutoff=0.0)
        near = f"; did you mean {close[0]!r}?" if close else ""
        raise EngineError(f"{name}: there is no {found[1]!r}{near} (known: {', '.join(known)})")
