"""power.json: the figures of a self-test as data, written and read back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import orjson

from leakcheck import runfolder
from leakcheck.errors import RunFolderError, UsageError
from leakcheck.records import SCHEMA
from leakcheck.selftest import table
from leakcheck.selftest.values import Power

_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def render(power: Power) -> str:
    """The figures as indented JSON, in the order of their fields."""
    return orjson.dumps(power, option=_OPTIONS).decode()


def load(text: str | bytes) -> Power:
    """Read power.json back. Raises RunFolderError that names the field or the schema version."""
    try:
        power = msgspec.json.decode(text, type=Power)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RunFolderError(f"power.json does not hold figures of a self-test: {error}") from None
    if power.schema != SCHEMA:
        raise RunFolderError(f"power.json has schema {power.schema}; this leakcheck reads {SCHEMA}")
    return power


def write(power: Power, *, out: Path | None, docs: Path | None) -> None:
    """Write the figures as JSON and as a page, where asked. Raises UsageError, HarnessError."""
    for path, text in ((out, render(power)), (docs, table.markdown(power))):
        if path is not None:
            require_place(path)
            runfolder.replace_file(path, text.encode())


def require_place(path: Path) -> None:
    """Make the folder of a file. Raises UsageError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); name another file"
        ) from None
