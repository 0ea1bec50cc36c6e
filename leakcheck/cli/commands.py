"""One short function a command. Heavy modules load inside them: `--help` must answer at once."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from leakcheck.cli import asked, bills, bounds
from leakcheck.records import EXIT_CODES, EXIT_INTERRUPTED, Caps, Report, SelfTest

KINDS = ("scenarios", "traffic", "checks", "backends", "faults")


def run(arguments: argparse.Namespace) -> int:
    """Run scenarios against a target and print the verdict."""
    from leakcheck.run import experiment  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy

    if arguments.resume:
        folder = Path(arguments.resume).resolve()
        bounds.resumed(arguments, folder)
        with progress(sys.stderr) as watch:
            return _show(experiment.resume(folder, watch), folder)
    options = experiment.Options(
        scenarios=asked.paths(arguments.scenarios),
        overrides=asked.overrides(arguments),
        setup=asked.setup(arguments, arguments.out),
    )
    if options.setup.caps != Caps() or options.setup.pace is not None:
        options = bounds.planned(options)
    if arguments.selftest:
        list(experiment.rehearse(options.scenarios, options.overrides))  # what is wrong comes first
        options = replace(options, setup=replace(options.setup, selftest=_proof()))
    with progress(sys.stderr) as watch:
        result, folder = experiment.run(options, watch)
    return _show(result, folder)


def plan(arguments: argparse.Namespace) -> int:
    """Say what it takes to see a leak of a given rate, or to exclude it; send nothing."""
    import shutil  # noqa: PLC0415 - only a screen needs the terminal's size

    from leakcheck import history, planning, scenario  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy

    terms, folder = bills.terms(arguments), bills.like(arguments)
    scenarios = [
        scenario.read(path, asked.overrides(arguments)) for path in asked.paths(arguments.scenarios)
    ]
    with progress(sys.stderr) as watch:
        watch("plan", 0, 1)
        run = None if folder is None else history.read(folder)
        result = planning.bills(scenarios, terms, run=run)
        watch("plan", 1, 1)
    origin = None if folder is None or run is None else (folder, run.provenance)
    width = shutil.get_terminal_size((100, 40)).columns
    print(bills.render(result, terms, origin, width), end="")
    return 0


def words(arguments: argparse.Namespace) -> int:
    """Measure which words a model echoes and does not say unasked; write them to a file."""
    from leakcheck import certify  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy

    options = certify.Options(
        setup=asked.setup(arguments, arguments.reports),
        file=arguments.out,
        repeats=arguments.repeats,
        neutral=arguments.neutral,
        workers=arguments.workers,
        lanes=arguments.lanes,
    )
    if options.setup.pace is not None:
        bounds.show(pace=options.setup.pace)
    with progress(sys.stderr) as watch:
        result = certify.run(options, watch, lambda line: print(line, file=sys.stderr))
    if result is None:
        print("leakcheck: interrupted; no list of words was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(result)
    return 0


def selftest(arguments: argparse.Namespace) -> int:
    """Play every fault of the embedded engine, and none; say whether leakcheck tells them apart."""
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy
    from leakcheck.selftest import campaign, document, table  # noqa: PLC0415 - heavy

    for path in (arguments.out, arguments.docs):
        if path is not None:
            document.require_place(path)
    options = campaign.Options(
        full=arguments.full,
        matrix=arguments.matrix,
        faults=tuple(arguments.fault),
        scenarios=tuple(arguments.scenario),
        seeds=arguments.seeds,
        windows=arguments.windows,
        seed=arguments.seed,
        budget_s=60.0 * arguments.minutes,
    )
    with progress(sys.stderr, campaign.UNIT) as watch:
        power = campaign.run(
            options, watch, lambda part: document.write(part, out=arguments.out, docs=None)
        )
    print(table.terminal(power), end="", flush=True)  # first: a full disk must not take it away
    document.write(power, out=arguments.out, docs=arguments.docs)
    return EXIT_CODES["error"] if power.failures else 0


def _proof() -> SelfTest:
    """The fast self-test before a run. Raises HarnessError where it fails: nothing is sent then."""
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy
    from leakcheck.selftest import campaign  # noqa: PLC0415 - heavy

    with progress(sys.stderr, campaign.UNIT) as watch:
        result = campaign.summary(campaign.run(campaign.Options(), watch))
    campaign.require_passed(result)
    return result


def analyze(arguments: argparse.Namespace) -> int:
    """Judge a run folder again, without its target."""
    from leakcheck.run import experiment  # noqa: PLC0415 - heavy
    from leakcheck.run.progress import progress  # noqa: PLC0415 - heavy

    folder = Path(arguments.run_dir).resolve()
    with progress(sys.stderr) as watch:
        result = experiment.judge(folder, watch)
    return _show(result, folder)


def serve(arguments: argparse.Namespace) -> int:
    """Become the embedded engine's server."""
    command = [sys.executable, "-m", "leakcheck.engine", *arguments.flags]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, by our own interpreter


def inspect(arguments: argparse.Namespace) -> int:
    """Become the engine's white-box commands for a local model."""
    command = [sys.executable, "-m", "leakcheck.engine.inspection", *arguments.flags]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, by our own interpreter


def validate(arguments: argparse.Namespace) -> int:
    """Read scenario files and plan them; send nothing."""
    from leakcheck.run import experiment  # noqa: PLC0415 - heavy

    for line in experiment.rehearse(asked.paths(arguments.scenarios), asked.overrides(arguments)):
        print(line)
    return 0


def list_(arguments: argparse.Namespace) -> int:
    """Print the names that scenarios, options and flags can use."""
    import shutil  # noqa: PLC0415 - only what is wrapped needs the terminal's size

    width = shutil.get_terminal_size((100, 40)).columns
    for kind in [arguments.kind] if arguments.kind else KINDS:
        print(f"{kind}:")
        for *columns, summary in _listing(kind):
            print(_wrapped("  " + "".join(f"{column:<26}" for column in columns), summary, width))
    return 0


# --- output --------------------------------------------------------------------------------------


def _show(result: Report, folder: Path) -> int:
    import shutil  # noqa: PLC0415 - only a report needs the terminal's size

    from leakcheck.report import terminal  # noqa: PLC0415 - heavy

    seen = sys.stdout is not None and sys.stdout.isatty()
    colour = seen and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size((100, 40)).columns
    screen = terminal.render(result, width=width, colour=colour, folder=str(folder))
    try:
        print(screen, end="", flush=True)
    except BrokenPipeError:  # whoever read it has gone; the verdict is what it is
        drop_output()
    return result.exit_code


def drop_output() -> None:
    """Let nothing more be written to standard output, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _wrapped(head: str, summary: str, width: int) -> str:
    """The summary beside its head where a third of the width is left for it, else below it."""
    import textwrap  # noqa: PLC0415 - only lists are wrapped

    beside = len(head) <= 2 * width // 3
    hang = " " * (len(head) if beside else 6)
    text = textwrap.fill(
        summary,
        max(width, len(hang) + 20),
        initial_indent=head if beside else hang,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return text if beside else f"{head.rstrip()}\n{text}"


def _listing(kind: str) -> list[tuple[str, ...]]:
    """Name, and what else there is to say, of everything of one kind; the longest comes last."""
    from leakcheck import plugin, scenario  # noqa: PLC0415 - reads traffic and passphrases

    if kind == "scenarios":
        files = scenario.shipped_files()
        return [(path.stem, scenario.read(path).summary) for path in files]
    if kind == "faults":
        return _faults()
    return [(name, plugin.summary(kind, name)) for name in plugin.names(kind)]


def _faults() -> list[tuple[str, ...]]:
    import json  # noqa: PLC0415 - only this command asks the engine
    import subprocess  # noqa: PLC0415 - only this command asks the engine

    command = [sys.executable, "-m", "leakcheck.engine", "--list-faults"]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own module
    return [
        (
            fault["name"],
            fault["layer"],
            f"{fault['effect']} (reported as {' or '.join(fault['anomalies']) or 'nothing'})",
        )
        for fault in json.loads(done.stdout)
    ]
