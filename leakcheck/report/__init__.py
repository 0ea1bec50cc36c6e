"""Reports: one renderer a file, each a pure function of a `records.Report`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from leakcheck.errors import HarnessError
from leakcheck.records import Report


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md and report.html into `folder`; each is whole or absent.

    Returns the three paths. Raises HarnessError naming the file that cannot be written. The JSON
    goes first: whatever befalls the other two, the judgement is kept.
    """
    from leakcheck.report import document, html, markdown  # noqa: PLC0415 (jinja2 loads when asked)

    renderers = {"json": document.render, "md": markdown.render, "html": html.render}
    return tuple(
        _replace(folder / f"report.{suffix}", render(report))
        for suffix, render in renderers.items()
    )


def _replace(path: Path, text: str) -> Path:
    """Put `text` at `path` in one step: a reader sees the old file or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise HarnessError(f"{path} cannot be written: {error.strerror}") from error
    return path
