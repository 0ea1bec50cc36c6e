"""The command line: one short function a command. Heavy modules load inside the commands."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import sys
import tomllib
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcheck import __version__
from leakcheck.errors import LeakcheckError, UsageError
from leakcheck.records import EXIT_CODES, EXIT_INTERRUPTED, Report, Target

if TYPE_CHECKING:
    from leakcheck.session import Setup

_KINDS = ("scenarios", "traffic", "checks", "backends", "faults")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SHORTCUTS = ("windows", "requests", "workers", "lanes", "max_tokens", "timeout_s", "phantoms")
_EPILOG = """\
exit codes: 0 clean, 1 leak or corruption, 2 usage, 3 inconclusive, 4 target or harness error,
130 interrupted. LEAKCHECK_TARGET (or OPENAI_BASE_URL), LEAKCHECK_MODEL, LEAKCHECK_SEED and
LEAKCHECK_OUT stand in for flags; API keys only ever come from the environment (--api-key-env)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never a traceback for a user's mistake."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command is serve:
        arguments.flags = rest  # the engine knows its own flags
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for signal_ in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_, signal.default_int_handler)  # as Ctrl-C: with a report
    try:
        _require_text(sys.argv[1:] if argv is None else argv)
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except LeakcheckError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted; `leakcheck analyze RUN_DIR` judges what a run has observed so far")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `leakcheck list | head`
        _drop_output()
        return 0
    except Exception as error:  # noqa: BLE001 - an exit code of 1 would say `leak`
        import traceback  # noqa: PLC0415 - only a defect needs it

        _drop_output()
        detail = "" if isinstance(error, OSError) else traceback.format_exc()
        _complain(
            f"this should not have happened: {type(error).__name__}: {error}\n{detail}".strip()
        )
        return EXIT_CODES["error"]
    return code


def _complain(text: str) -> None:
    """A sentence on standard error; what a target put into it cannot steer the terminal."""
    from leakcheck.report.untrusted import visible  # noqa: PLC0415 - only a complaint needs it

    lines = [visible(line) for line in f"leakcheck: {text}".splitlines()]
    with contextlib.suppress(OSError):  # nobody listens
        print("\n".join(lines), file=sys.stderr)


def _drop_output() -> None:
    """Let nothing more be written to standard output, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _require_text(arguments: Sequence[str]) -> None:
    for text in arguments:
        if not text.isprintable():
            raise UsageError(f"{text!r} holds characters that no flag, file or name here can have")


# --- commands ------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Run scenarios against a target and print the verdict."""
    from leakcheck import experiment  # noqa: PLC0415 - heavy
    from leakcheck.progress import progress  # noqa: PLC0415 - heavy

    with progress(sys.stderr) as watch:
        if arguments.resume:
            _require_nothing_else(arguments)
            folder = Path(arguments.resume)
            result = experiment.resume(folder, watch)
        else:
            options = experiment.Options(
                scenarios=_paths(arguments.scenarios),
                overrides=_overrides(arguments),
                setup=_setup(arguments, arguments.out),
            )
            result, folder = experiment.run(options, watch)
    return _show(result, folder)


def words(arguments: argparse.Namespace) -> int:
    """Measure which words a model echoes and does not say unasked; write them to a file."""
    from leakcheck import certify  # noqa: PLC0415 - heavy
    from leakcheck.progress import progress  # noqa: PLC0415 - heavy

    options = certify.Options(
        setup=_setup(arguments, arguments.reports),
        file=arguments.out,
        repeats=arguments.repeats,
        neutral=arguments.neutral,
        workers=arguments.workers,
        lanes=arguments.lanes,
    )
    with progress(sys.stderr) as watch:
        result = certify.run(options, watch, lambda line: print(line, file=sys.stderr))
    if result is None:
        print("leakcheck: interrupted; no list of words was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(result)
    return 0


def analyze(arguments: argparse.Namespace) -> int:
    """Judge a run folder again, without its target."""
    from leakcheck import experiment  # noqa: PLC0415 - heavy
    from leakcheck.progress import progress  # noqa: PLC0415 - heavy

    folder = Path(arguments.run_dir).resolve()
    with progress(sys.stderr) as watch:
        result = experiment.judge(folder, watch)
    return _show(result, folder)


def serve(arguments: argparse.Namespace) -> int:
    """Become the embedded engine's server."""
    command = [sys.executable, "-m", "leakcheck.engine", *arguments.flags]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, by our own interpreter


def validate(arguments: argparse.Namespace) -> int:
    """Read scenario files and plan them; send nothing."""
    from leakcheck import experiment  # noqa: PLC0415 - heavy

    for line in experiment.rehearse(_paths(arguments.scenarios), _overrides(arguments)):
        print(line)
    return 0


def list_(arguments: argparse.Namespace) -> int:
    """Print the names that scenarios, options and flags can use."""
    for kind in [arguments.kind] if arguments.kind else _KINDS:
        print(f"{kind}:")
        for name, summary in _listing(kind):
            print(f"  {name:<26}{summary}")
    return 0


# --- arguments -----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leakcheck",
        description="Does any request's content reach another request's answer?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"leakcheck {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _run_parser(commands)
    _words_parser(commands)
    command = commands.add_parser("analyze", help="the same report again, without the target")
    command.add_argument("run_dir", metavar="RUN_DIR")
    command.set_defaults(command=analyze)
    command = commands.add_parser(
        "serve",
        help="the embedded engine as an OpenAI-compatible server",
        add_help=False,
    )
    command.set_defaults(command=serve)
    command = commands.add_parser("validate", help="read scenario files and plan; send nothing")
    command.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    _override_flags(command)
    command.set_defaults(command=validate)
    command = commands.add_parser("list", help="what there is: " + ", ".join(_KINDS))
    command.add_argument("kind", nargs="?", choices=_KINDS)
    command.set_defaults(command=list_)
    return parser


def _run_parser(commands: Any) -> None:
    command = commands.add_parser("run", help="run scenarios against a target; print the verdict")
    command.set_defaults(command=run)
    add = command.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="files or names; all shipped if none")
    _target_flags(command)
    add("--out", type=Path, metavar="DIR", help="where run folders go (default reports)")
    add("--resume", metavar="RUN_DIR", type=Path, help="go on with an interrupted run")
    _override_flags(command)


def _words_parser(commands: Any) -> None:
    command = commands.add_parser("words", help="measure which words a model can be tested with")
    command.set_defaults(command=words)
    _target_flags(command)
    add = command.add_argument
    add("--out", type=Path, metavar="FILE", required=True, help="where the words that pass go")
    add("--repeats", type=_positive, default=20, metavar="N", help="tries a word (default 20)")
    add("--neutral", type=_positive, default=100, metavar="N",
        help="answers to neutral requests (default 100)")  # fmt: skip
    add("--workers", type=_positive, default=4, metavar="N", help="processes (default 4)")
    add("--lanes", type=_positive, default=4, metavar="N",
        help="requests in flight in each process (default 4)")  # fmt: skip
    add("--timeout-s", type=float, metavar="N", help="patience for one answer (default 60)")
    add("--reports", type=Path, metavar="DIR", help="where the run folder goes (default reports)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _target_flags(command: argparse.ArgumentParser) -> None:
    for flag, settings in _TARGET_FLAGS.items():
        command.add_argument(flag, **settings)


_TARGET_FLAGS: dict[str, dict[str, Any]] = {
    "--target": {"metavar": "URL", "help": "base URL, such as http://127.0.0.1:8000/v1"},
    "--model": {
        "metavar": "M",
        "help": "model name at the target; for the embedded engine: witness, smollm2-135m, "
        "a path or a hub id",
    },
    "--embedded": {
        "action": "store_true",
        "help": "start and test the embedded engine (the default without --target)",
    },
    "--fault": {"metavar": "NAME", "help": "switch on a fault of the embedded engine"},
    "--engine-flag": {
        "action": "append",
        "default": [],
        "metavar": "FLAG",
        "help": "a flag for the embedded engine, such as --engine-flag=--blocks=64",
    },
    "--api": {"choices": ("chat", "completions"), "default": "chat", "help": "which endpoint"},
    "--api-key-env": {
        "metavar": "NAME",
        "help": "environment variable with the API key (OPENAI_API_KEY where that is set)",
    },
    "--header-env": {
        "action": "append",
        "default": [],
        "metavar": "HEADER=NAME",
        "help": "a header whose value is in the environment variable NAME",
    },
    "--ca-file": {"metavar": "PEM", "help": "a private certificate authority to trust"},
    "--backend": {"default": "openai", "metavar": "NAME", "help": "the protocol to speak"},
    "--tokenizer": {
        "metavar": "PATH",
        "help": "the target's tokenizer: whole rare tokens, exact prefix lengths",
    },
    "--words": {"metavar": "FILE", "type": Path, "help": "words for passphrases, one a line"},
    "--seed": {
        "type": int,
        "metavar": "N",
        "help": "equal seeds give equal plans (default: fresh)",
    },
}


def _require_nothing_else(arguments: argparse.Namespace) -> None:
    """Refuse flags beside --resume: the plan and the target of a run are fixed."""
    defaults = vars(_parser().parse_args(["run"]))
    for name, value in vars(arguments).items():
        if name != "resume" and value != defaults[name]:
            flag = name.replace("_", "-")
            raise UsageError(f"--resume goes on with the run as it was planned; leave out {flag!r}")


def _override_flags(command: argparse.ArgumentParser) -> None:
    for name in _SHORTCUTS:
        command.add_argument(
            f"--{name.replace('_', '-')}",
            type=float if name.endswith("_s") else int,
            metavar="N",
            help=f"overrides load.{name} of every scenario",
        )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="overrides any value of the scenario files, such as gate.min_windows=20",
    )


def _env(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _setup(arguments: argparse.Namespace, out: Path | None) -> Setup:
    from leakcheck.session import Setup  # noqa: PLC0415 - heavy

    target, seed = _target(arguments), _seed(arguments)
    model = arguments.model or _env("LEAKCHECK_MODEL") or "witness"
    flags = [f"--model={model}", f"--seed={seed}", *arguments.engine_flag]
    if arguments.fault:
        flags.append(f"--fault={arguments.fault}")
    return Setup(
        target=target,
        engine=None if target else tuple(flags),
        api=arguments.api,
        timeout_s=arguments.timeout_s or 60.0,
        seed=seed,
        out=out or Path(_env("LEAKCHECK_OUT") or "reports"),
        tokenizer=arguments.tokenizer,
        words=arguments.words,
        command=("leakcheck", *sys.argv[1:]),
    )


def _seed(arguments: argparse.Namespace) -> int:
    """The seed of the flag or the environment; else a fresh one, for a passphrase is used once."""
    text = _env("LEAKCHECK_SEED")
    if arguments.seed is None and text is None:
        return secrets.randbelow(2**31)
    if arguments.seed is None and not (text or "").removeprefix("-").isdecimal():
        raise UsageError(f"LEAKCHECK_SEED: {text!r} is not an integer")
    seed = int(text or "0") if arguments.seed is None else int(arguments.seed)
    if not 0 <= seed < 2**63:
        raise UsageError(f"the seed {seed} is out of range; use 0 to {2**63 - 1}")
    return seed


def _target(arguments: argparse.Namespace) -> Target | None:
    """The target of the flags and the environment; None for the embedded engine."""
    embedded = arguments.embedded or arguments.fault or arguments.engine_flag
    if arguments.target and embedded:
        raise UsageError("--target and --embedded (--fault, --engine-flag) exclude each other")
    url = None if embedded else arguments.target or _env("LEAKCHECK_TARGET", "OPENAI_BASE_URL")
    if url is None:
        return None
    _require_plain(url)
    from leakcheck import plugin  # noqa: PLC0415 - imports the backend

    plugin.load("backends", arguments.backend, "connect")
    model = arguments.model or _env("LEAKCHECK_MODEL")
    if not model:
        raise UsageError(f"--model is missing: name the model that {url} should answer with")
    key = arguments.api_key_env or ("OPENAI_API_KEY" if _env("OPENAI_API_KEY") else None)
    headers = dict(_header(text) for text in arguments.header_env)
    for name in [*headers.values(), *([key] if key else [])]:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                "what --api-key-env or --header-env names is no environment variable (it is not "
                "repeated here: it may be a key); set one and give its name"
            )
        if not os.environ.get(name):
            raise UsageError(f"environment variable {name} is not set; it should hold a secret")
    return Target(
        base_url=url.rstrip("/"),
        model=model,
        backend=arguments.backend,
        api=arguments.api,
        api_key_env=key,
        headers_env=headers,
        ca_file=arguments.ca_file,
        **({} if arguments.timeout_s is None else {"timeout_s": arguments.timeout_s}),
    )


def _require_plain(url: str) -> None:
    """Refuse what is no URL, and one with a secret in it: a URL is written into every report."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise UsageError("--target: not a URL; write it as http://host:port/v1") from None
    if parts.username or parts.password:
        raise UsageError(
            f"--target: the URL of {parts.hostname} holds credentials; put the key into an "
            "environment variable and name that with --api-key-env or --header-env"
        )
    extra = [name for name, _ in urllib.parse.parse_qsl(parts.query) if name != "api-version"]
    if extra:
        raise UsageError(
            f"--target: the URL of {parts.hostname} has the query parameter {extra[0]!r}; URLs are "
            "written into reports, so send it as a header with --header-env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise UsageError(f"--target: {url!r} is not a URL; write it as http://host:port/v1")


def _header(text: str) -> tuple[str, str]:
    header, equals, name = text.partition("=")
    if not (_HEADER.fullmatch(header) and equals and name):
        raise UsageError("--header-env: not of the form HEADER=NAME, such as X-Api-Key=MY_KEY")
    return header, name


def _paths(names: Sequence[str]) -> tuple[Path, ...]:
    from leakcheck import scenario  # noqa: PLC0415 - reads traffic and passphrases

    return tuple(scenario.find(name) for name in names) or scenario.shipped_files()


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    found = {f"load.{name}": getattr(arguments, name) for name in _SHORTCUTS}
    overrides = {key: value for key, value in found.items() if value is not None}
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--set: {text!r} is not KEY=VALUE, such as load.windows=20")
        try:
            overrides[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            overrides[key] = value
    return overrides


# --- output --------------------------------------------------------------------------------------


def _show(result: Report, folder: Path) -> int:
    import shutil  # noqa: PLC0415 - only a report needs the terminal's size

    from leakcheck.report import terminal  # noqa: PLC0415 - heavy

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size((100, 40)).columns
    print(terminal.render(result, width=width, colour=colour, folder=str(folder)), end="")
    return result.exit_code


def _listing(kind: str) -> list[tuple[str, str]]:
    """Name and summary of everything of one kind."""
    from leakcheck import plugin, scenario  # noqa: PLC0415 - reads traffic and passphrases

    if kind == "scenarios":
        files = scenario.shipped_files()
        return [(path.stem, scenario.read(path).summary) for path in files]
    if kind == "faults":
        return _faults()
    return [(name, plugin.summary(kind, name)) for name in plugin.names(kind)]


def _faults() -> list[tuple[str, str]]:
    import json  # noqa: PLC0415 - only this command asks the engine
    import subprocess  # noqa: PLC0415 - only this command asks the engine

    command = [sys.executable, "-m", "leakcheck.engine", "--list-faults"]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own module
    return [(fault["name"], fault["effect"]) for fault in json.loads(done.stdout)]


if __name__ == "__main__":
    sys.exit(main())
