"""`leakcheck doctor`: what a target can do, and what that means for each scenario."""

from __future__ import annotations

import argparse
import os
import shutil
import sys


def doctor(arguments: argparse.Namespace) -> int:
    """Examine a target; print one screen, or the record as JSON."""
    from leakcheck import doctor as examining  # noqa: PLC0415 - heavy
    from leakcheck.cli import asked, commands  # noqa: PLC0415 - beside the others
    from leakcheck.report import diagnosis  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy
    from leakcheck.survey import address  # noqa: PLC0415 - heavy

    if arguments.url is not None:
        arguments.target = arguments.url
    any_api = arguments.api is None
    arguments.api = arguments.api or "chat"
    named = arguments.model or os.environ.get("LEAKCHECK_MODEL")
    aimed = arguments.target or os.environ.get("LEAKCHECK_TARGET")
    if aimed and not named and arguments.backend == "openai":
        arguments.model = address.UNNAMED
    setup = asked.setup(arguments, None)
    with progress(sys.stderr) as watch:
        found = examining.examine(setup, watch, any_api=any_api)
    width = shutil.get_terminal_size((100, 40)).columns
    text = diagnosis.as_json(found) if arguments.json else diagnosis.render(found, width=width)
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # whoever read it has gone
        commands.drop_output()
    return found.exit_code
