"""Reports: one renderer a file, each a pure function of a `records.Report`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from leakcheck.errors import HarnessError
from leakcheck.records import Report


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md and report.html into `folder`, and replay.sh where a finding has
    a script that shows it again; each is whole or absent.

    Returns their paths. Raises HarnessError naming the file that cannot be written. The JSON
    goes first: whatever befalls the others, the judgement is kept.
    """
    # jinja2 loads when asked
    from leakcheck.report import document, html, markdown, replay  # noqa: PLC0415

    renderers: dict[str, Callable[[Report], str | None]] = {
        "report.json": document.render,
        "report.md": markdown.render,
        "report.html": html.render,
        "replay.sh": replay.render,
    }
    texts = ((folder / name, render(report)) for name, render in renderers.items())
    return tuple(_replace(path, text) for path, text in texts if text is not None)


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
