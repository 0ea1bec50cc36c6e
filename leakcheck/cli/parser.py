"""Every command and flag."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from leakcheck import __version__
from leakcheck.cli import bounds, commands
from leakcheck.cli.asked import SHORTCUTS
from leakcheck.cli.diff import diff
from leakcheck.cli.doctor import doctor
from leakcheck.errors import UsageError

_EXIT_CODES = """\
exit codes: 0 clean, 1 leak or corruption, 2 usage, 3 inconclusive, 4 target or harness error,
130 interrupted."""
_EPILOG = f"""\
{_EXIT_CODES} LEAKCHECK_TARGET (or OPENAI_BASE_URL), LEAKCHECK_MODEL, LEAKCHECK_SEED and
LEAKCHECK_OUT stand in for flags; API keys only ever come from the environment (--api-key-env).
`leakcheck COMMAND --help` says more."""

_NUMBER = re.compile(r"invalid (float|int) value: (.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """Its errors are UsageErrors of one sentence; there is no other way to be rid of its usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(_sentence(message, self.prog))


def _sentence(message: str, asked: str) -> str:
    """What argparse complains of, in the words of leakcheck: the flag or name, and what is right.

    `asked` is the program and command whose help says what there is.
    """
    where, colon, what = message.partition(": ")
    if where == "the following arguments are required":
        return f"{what} is missing; `{asked} --help` says what there is"
    if where == "unrecognized arguments":
        return f"there is no flag or argument {what!r} here; `{asked} --help` says what there is"
    if not (colon and where.startswith("argument ")):
        return message
    name = where.removeprefix("argument ")
    if found := _CHOICE.fullmatch(what):
        from leakcheck import plugin  # noqa: PLC0415 - only a mistake needs it

        known = [each.strip("'") for each in found[2].split(", ")]
        near = plugin.nearest(found[1], known)
        return f"{name}: there is no {found[1]!r}{near} (known: {', '.join(known)})"
    if found := _NUMBER.fullmatch(what):
        kind = "a whole number" if found[1] == "int" else "a number"
        return f"{name}: {found[2]} is not {kind}"
    return f"{name}: {what}"


def parser() -> argparse.ArgumentParser:
    """The whole command line; each command sets `command` to its function. What cannot be parsed
    is a UsageError.
    """
    its = _Parser(
        prog="leakcheck",
        description="Does any request's content reach another request's answer?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    its.add_argument("--version", action="version", version=f"leakcheck {__version__}")
    its_commands = its.add_subparsers(metavar="COMMAND", required=True)
    _run_parser(its_commands)
    _plan_parser(its_commands)
    _diff_parser(its_commands)
    _doctor_parser(its_commands)
    _words_parser(its_commands)
    _selftest_parser(its_commands)
    command = _command(
        its_commands, "analyze", "the same report again, without the target", epilog=_EXIT_CODES
    )
    command.add_argument("run_dir", metavar="RUN_DIR", help="such as reports/latest")
    command.set_defaults(command=commands.analyze)
    command = its_commands.add_parser(
        "serve",
        help="the embedded engine as an OpenAI-compatible server",
        add_help=False,
    )
    command.set_defaults(command=commands.serve)
    command = its_commands.add_parser(
        "inspect",
        help="look inside a local model, cache or running engine",
        add_help=False,
    )
    command.set_defaults(command=commands.inspect)
    command = _command(its_commands, "validate", "read scenario files and plan; send nothing")
    _scenarios(command)
    _gate_flags(command)
    _override_flags(command)
    command.set_defaults(command=commands.validate)
    command = _command(its_commands, "list", "what there is: " + ", ".join(commands.KINDS))
    command.add_argument("kind", nargs="?", choices=commands.KINDS, help="all of them if none")
    command.set_defaults(command=commands.list_)
    return its


def _command(
    its_commands: Any, name: str, what: str, *, epilog: str | None = None
) -> argparse.ArgumentParser:
    """A command; `what` it is for stands in the list of commands and in its own help."""
    command: argparse.ArgumentParser = its_commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=epilog
    )
    return command


def _scenarios(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help="files or names (`leakcheck list scenarios`); if none, all of the folder ./scenarios, "
        "else all shipped",
    )


def _run_parser(its_commands: Any) -> None:
    command = _command(
        its_commands,
        "run",
        "run scenarios against a target; print the verdict",
        epilog=_EXIT_CODES,
    )
    command.set_defaults(command=commands.run)
    _scenarios(command)
    add = command.add_argument
    _target_flags(command)
    add("--out", type=Path, metavar="DIR",
        help="where run folders go, and the link `latest` to the newest one "
        "(default reports)")  # fmt: skip
    add("--resume", metavar="RUN_DIR", type=Path,
        help="go on with an interrupted run, as it was planned: no other flag beside it, but "
        "permission")  # fmt: skip
    add("--selftest", action="store_true",
        help="first prove that leakcheck tells faults from none, else stop "
        "(exit code 4)")  # fmt: skip
    add("--play-all", action="store_true",
        help="play every planned window, and end no scenario early")  # fmt: skip
    add("--lifetimes", type=_positive, metavar="N",
        help="restart the target between N equal blocks of windows of each scenario (default 1; "
        "a target that is not embedded needs --restart)")  # fmt: skip
    add("--restart", metavar="COMMAND",
        help="how to restart a target that is not embedded (2 lifetimes without --lifetimes); "
        "it is written into the report")  # fmt: skip
    bounds.flags(command)
    add("--metrics", metavar="URL", default="auto",
        help="the target's metrics (auto: /metrics of one on this machine; or off)")  # fmt: skip
    _gate_flags(command)
    _override_flags(command)


def _plan_parser(its_commands: Any) -> None:
    command = _command(
        its_commands,
        "plan",
        "how many windows, requests, tokens, minutes and dollars a claim takes; send nothing",
    )
    command.set_defaults(command=commands.plan)
    _scenarios(command)
    add = command.add_argument
    add("--power", default="95%", metavar="SHARE",
        help="the chance to see such a leak (default 95%%)")  # fmt: skip
    add("--like", type=Path, metavar="RUN_DIR",
        help="the run to take echo, tokens and speed from (default reports/latest)")  # fmt: skip
    add("--rate", type=float, metavar="N",
        help="requests a second that the target answers (default: as in that run)")  # fmt: skip
    add("--price-in", type=float, metavar="USD", help="price of a million tokens of prompts")
    add("--price-out", type=float, metavar="USD", help="price of a million tokens of answers")
    _gate_flags(command)
    _override_flags(command)


def _diff_parser(its_commands: Any) -> None:
    command = _command(
        its_commands,
        "diff",
        "the same requests alone and in company, to see whether neighbours change answers",
        epilog=_EXIT_CODES,
    )
    command.set_defaults(command=diff)
    _target_flags(command)
    add = command.add_argument
    add("--out", type=Path, metavar="DIR", help="where the run folder goes (default reports)")
    add("--metrics", metavar="URL", default="auto",
        help="the target's metrics (auto: /metrics of one on this machine; or off)")  # fmt: skip
    add("--detect", metavar="RATE",
        help="the leak rate that clean must exclude (gate.detect; default 10%% here), which sets "
        "the number of windows: 85 for 10%%, some 3,250 requests")  # fmt: skip
    bounds.flags(command)
    _alpha_flag(command)
    command.set_defaults(smoke=False)
    _override_flags(command)


def _doctor_parser(its_commands: Any) -> None:
    command = _command(
        its_commands,
        "doctor",
        "what a target can do, and what that means for each scenario",
        epilog="exit codes: 0 examined to the end, 2 usage, 3 a cap was used up on the way, "
        "4 nothing usable answers, or it was lost meanwhile, 130 interrupted.",
    )
    add = command.add_argument
    add("url", nargs="?", metavar="URL", help="the same as --target; the embedded engine if none")
    _target_flags(command)
    add("--json", action="store_true", help="print the record in place of the screen")
    add("--timeout-s", type=float, metavar="N", help="patience for one answer (default 60)")
    bounds.flags(command)
    command.set_defaults(command=doctor, api=None)


def _words_parser(its_commands: Any) -> None:
    command = _command(its_commands, "words", "measure which words a model can be tested with")
    command.set_defaults(command=commands.words)
    _target_flags(command)
    add = command.add_argument
    add("--out", type=Path, metavar="FILE", required=True,
        help="where the words that pass go, for `leakcheck run --words FILE`")  # fmt: skip
    add("--repeats", type=_positive, default=20, metavar="N", help="tries a word (default 20)")
    add("--neutral", type=_positive, default=100, metavar="N",
        help="answers to neutral requests (default 100)")  # fmt: skip
    add("--workers", type=_positive, default=4, metavar="N", help="processes (default 4)")
    add("--lanes", type=_positive, default=4, metavar="N",
        help="requests in flight in each process (default 4)")  # fmt: skip
    add("--timeout-s", type=float, metavar="N", help="patience for one answer (default 60)")
    add("--reports", type=Path, metavar="DIR", help="where the run folder goes (default reports)")
    bounds.flags(command)


def _selftest_parser(its_commands: Any) -> None:
    command = _command(
        its_commands,
        "selftest",
        "prove that leakcheck can say leak, and does not say it of what is none",
        epilog="exit codes: 0 proven, 2 usage, 4 a fault was missed or something harmless was "
        "accused, 130 interrupted.",
    )
    command.set_defaults(command=commands.selftest)
    add = command.add_argument
    add("--full", action="store_true", help="20 seeds a fault, 10 a benign one, 30 without one")
    add("--matrix", action="store_true", help="also each fault in scenarios that do not claim it")
    add("--fault", action="append", default=[], metavar="NAME", help="only this fault (repeatable)")
    add("--scenario", action="append", default=[], metavar="NAME",
        help="only this scenario, held to catch what is played (repeatable)")  # fmt: skip
    add("--seeds", type=_positive, metavar="N",
        help="so many seeds a fault (default 1, or as --full says)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    add("--windows", type=_positive, metavar="N", help="at most so many windows a trial")
    add("--minutes", type=_positive, default=55, metavar="N",
        help="what --matrix adds is left out after so long (default 55)")  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="write the figures there, as JSON")
    add("--docs", type=Path, metavar="FILE", help="write the tables there, as Markdown")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _target_flags(command: argparse.ArgumentParser) -> None:
    for flag, settings in _TARGET_FLAGS.items():
        command.add_argument(flag, **settings)


_TARGET_FLAGS: dict[str, dict[str, Any]] = {
    "--target": {
        "metavar": "URL",
        "help": "base URL, such as http://127.0.0.1:8000/v1, or what the --backend wants: a "
        "command, module:function, a provider",
    },
    "--model": {
        "metavar": "M",
        "help": "model name at the target; for the embedded engine: witness, smollm2-135m, "
        "a path or a hub id",
    },
    "--embedded": {
        "action": "store_true",
        "help": "start and test the embedded engine (the default without --target)",
    },
    "--fault": {
        "metavar": "NAME",
        "help": "switch on a fault of the embedded engine; see `leakcheck list faults`",
    },
    "--engine-flag": {
        "action": "append",
        "default": [],
        "metavar": "FLAG",
        "help": "a flag for the embedded engine, such as --engine-flag=--blocks=64 (repeatable; "
        "see `leakcheck serve --help`)",
    },
    "--api": {
        "choices": ("chat", "completions", "responses"),
        "default": "chat",
        "help": "which endpoint (default chat; of `doctor`, the first that answers)",
    },
    "--api-key-env": {
        "metavar": "NAME",
        "help": "environment variable with the API key (default: the usual one of the backend, "
        "such as OPENAI_API_KEY)",
    },
    "--header-env": {
        "action": "append",
        "default": [],
        "metavar": "HEADER=NAME",
        "help": "a header whose value is in the environment variable NAME (repeatable)",
    },
    "--tenant": {
        "action": "append",
        "default": [],
        "metavar": "NAME=ENV_VAR",
        "help": "an identity with the API key in ENV_VAR; requests are dealt to all of them "
        "(repeatable; after commas: HEADER=ENV_VAR, salt=TEXT, user=TEXT)",
    },
    "--replica-header": {
        "metavar": "NAME",
        "help": "the header of a reply that names the replica (default: the usual ones)",
    },
    "--no-keep-alive": {"action": "store_true", "help": "a new connection for every request"},
    "--wait-ready": {
        "type": float,
        "metavar": "SECONDS",
        "help": "wait at most so long for the target to answer before anything is sent",
    },
    "--ca-file": {"metavar": "PEM", "help": "a private certificate authority to trust"},
    "--backend": {
        "default": "openai",
        "metavar": "NAME",
        "help": "the protocol to speak (default openai); see `leakcheck list backends`",
    },
    "--tokenizer": {
        "metavar": "PATH",
        "help": "folder or hub id of the target's tokenizer, for words that are whole tokens and "
        "prefixes of exact length",
    },
    "--words": {"metavar": "FILE", "type": Path, "help": "words for passphrases, one a line"},
    "--style": {
        "choices": ("auto", "rare-token", "made-up", "digits", "phrase"),
        "metavar": "STYLE",
        "help": "passphrases of rare-token, made-up, digits, phrase, or auto: the one that the "
        "target echoes best, measured with at most 60 requests (default auto)",
    },
    "--fresh": {
        "action": "store_true",
        "help": "measure again what the target echoes, although that was done within a day",
    },
    "--seed": {
        "type": int,
        "metavar": "N",
        "help": "equal seeds give equal plans (default: fresh)",
    },
}


_SHORTCUTS = {
    "windows": "windows at most",
    "requests": "requests in a phase of a window",
    "workers": "processes that send",
    "lanes": "requests in flight in each process",
    "max_tokens": "tokens of an answer at most",
    "timeout_s": "seconds of patience for one answer",
    "phantoms": "passphrases a window that are drawn and never sent, to compare with",
}


def _override_flags(command: argparse.ArgumentParser) -> None:
    for name in SHORTCUTS:
        command.add_argument(
            f"--{name.replace('_', '-')}",
            type=float if name.endswith("_s") else int,
            metavar="N",
            help=f"{_SHORTCUTS[name]} (load.{name} of every scenario)",
        )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="overrides any value of the scenario files, such as gate.min_windows=20, or of one of "
        "them: abort-storm:load.windows=20 (repeatable)",
    )


def _gate_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--detect", metavar="RATE",
        help="the leak rate, of windows, that clean must exclude (gate.detect; default 1%%, or "
        "what a budget can exclude)")  # fmt: skip
    _alpha_flag(command)
    add("--smoke", action="store_true", help="the same as --detect 5%%: a fifth of the windows")


def _alpha_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--alpha",
        metavar="RATE",
        help="the chance of a false leak on evidence short of a whole passphrase (gate.alpha; "
        "default 1%%)",
    )
