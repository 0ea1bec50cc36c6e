"""`leakcheck diff`: the differential ad hoc, with its budget before and its answer after."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace


def diff(arguments: argparse.Namespace) -> int:
    """Compare the same requests alone, in neutral and in planted company; say what came of it."""
    import textwrap  # noqa: PLC0415 - only a screen needs it

    from leakcheck import differential, experiment, scenario  # noqa: PLC0415 - heavy
    from leakcheck.cli import asked, commands  # noqa: PLC0415 - beside the others
    from leakcheck.progress import progress  # noqa: PLC0415 - heavy
    from leakcheck.report.untrusted import visible  # noqa: PLC0415 - heavy

    chosen = asked.overrides(arguments)
    caps = differential.Caps(requests=arguments.max_requests, tokens=arguments.max_tokens_total)
    budget = differential.budget(chosen, caps)
    setup = replace(asked.setup(arguments, arguments.out), play_all=True)
    options = experiment.Options(
        scenarios=(scenario.find(differential.NAME),),
        overrides={**chosen, **budget.overrides()},
        setup=setup,
    )
    print(textwrap.fill(budget.sentence(), 100), flush=True)
    with progress(sys.stderr) as watch:
        result, folder = experiment.run(options, watch)
    paragraph = visible(differential.answer(result, folder))
    try:
        print(f"\n{textwrap.fill(paragraph, 100)}\n\nreport: {folder}/report.html", flush=True)
    except BrokenPipeError:  # whoever read it has gone; the verdict is what it is
        commands.drop_output()
    return result.exit_code
