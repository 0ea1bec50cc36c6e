"""report.json: the report as data. docs/report-schema.md explains it."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from leakcheck.errors import HarnessError, RunFolderError
from leakcheck.records import SCHEMA, Report

_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
_WRITE = _OPTIONS | orjson.OPT_SERIALIZE_NUMPY


def render(report: Report) -> str:
    """The report as indented JSON: records in the order of their fields, free keys sorted.

    A number that is not finite becomes null in free fields (evidence, tables). Raises
    HarnessError where a report could not be read back: it names the field.
    """
    try:
        text = orjson.dumps(report, option=_WRITE)
    except TypeError:
        text = _encode_with_surrogates(report)
    try:
        load(text)
    except RunFolderError as damage:
        raise HarnessError(f"the report cannot be written: {damage}") from damage
    return text.decode()


def load(text: str | bytes) -> Report:
    """Read report.json back. Raises RunFolderError that names the field or the schema version."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RunFolderError(f"report.json is not JSON: {error}") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if version != SCHEMA:
        raise RunFolderError(f"report.json has schema {version!r}; this leakcheck reads {SCHEMA}")
    try:
        return msgspec.convert(data, Report)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"report.json is not a report: {error}") from error


def schema() -> str:
    """The JSON Schema of report.json, as it is committed in docs/report.schema.json."""
    return orjson.dumps(msgspec.json.schema(Report), option=_OPTIONS).decode()


def _encode_with_surrogates(report: Report) -> bytes:
    try:
        return orjson.dumps(_utf8(msgspec.to_builtins(report)), option=_WRITE)
    except TypeError as error:
        raise HarnessError(
            f"the report holds a value that JSON has no form for: {error}"
        ) from error


def _utf8(value: Any) -> Any:
    """The same value with lone surrogates of its texts replaced: JSON in UTF-8 cannot hold them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_utf8(item) for item in value]
    return value
