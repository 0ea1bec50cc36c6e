"""`leakcheck diff`: the differential ad hoc, with its budget before and its answer after."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from leakcheck.budget.spending import Caps
    from leakcheck.records import Report


def diff(arguments: argparse.Namespace) -> int:
    """Compare the same requests alone, in neutral and in planted company; say what came of it."""
    from leakcheck import differential, scenario  # noqa: PLC0415 - heavy
    from leakcheck.cli import asked, bounds, commands  # noqa: PLC0415 - beside the others
    from leakcheck.run import experiment  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy

    chosen = asked.overrides(arguments)
    setup = asked.setup(arguments, arguments.out)
    keys = 1 if setup.target is None else max(1, len(setup.target.tenants))
    budget = differential.budget(chosen, setup.caps, keys=keys)
    options = experiment.Options(
        scenarios=(scenario.find(differential.NAME),),
        overrides={**chosen, **budget.overrides()},
        setup=setup,
    )
    width = shutil.get_terminal_size((100, 40)).columns
    bounds.show(budget.sentence(), pace=setup.pace)
    with progress(sys.stderr) as watch:
        result, folder = experiment.run(options, watch)
    try:
        print(_screen(result, folder, setup.caps, width), end="", flush=True)
    except BrokenPipeError:  # whoever read it has gone; the verdict is what it is
        commands.drop_output()
    return result.exit_code


def _screen(result: Report, folder: Path, caps: Caps, width: int) -> str:
    """The verdict, then findings, then a short line each of what it rests on."""
    import textwrap  # noqa: PLC0415 - only a screen needs it

    from leakcheck import differential  # noqa: PLC0415 - heavy
    from leakcheck.budget import spending  # noqa: PLC0415 - heavy
    from leakcheck.history import troubles  # noqa: PLC0415 - heavy
    from leakcheck.report import terminal  # noqa: PLC0415 - heavy
    from leakcheck.report.untrusted import visible  # noqa: PLC0415 - heavy

    def filled(text: str, hang: int) -> str:
        return textwrap.fill(visible(text), max(width, 40), subsequent_indent=" " * hang)

    seen = sys.stdout is not None and sys.stdout.isatty()
    colour = seen and not os.environ.get("NO_COLOR")
    found = terminal.findings(result, width=width, colour=colour)
    wrong = troubles.sentence(result.troubles)
    lines = [
        *differential.answer(result, folder),
        *([f"{'went wrong:':14}{wrong}."] if wrong else []),
        f"{'used:':14}{spending.sentence(caps, spending.used(folder))}.",
        f"{'report:':14}{folder}/report.html",
    ]
    blocks = [
        filled(f"{differential.verdict(result)}.", 2),
        found.rstrip(),
        "\n".join(filled(line, 14) for line in lines),
    ]
    return "\n" + "\n\n".join(filter(None, blocks)) + "\n"
