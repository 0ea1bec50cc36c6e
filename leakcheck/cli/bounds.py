"""Budget, pace and breaker on the command line: what flags say, and defaults for guests."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcheck.budget import manners
from leakcheck.cli import asked
from leakcheck.errors import UsageError
from leakcheck.records import Caps, Pace, Target

if TYPE_CHECKING:
    from leakcheck.run.experiment import Options

_RATE = re.compile(r"(\d{1,6})\s*/\s*(\d{0,6}(?:\.\d{1,6})?)\s*(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PRICES = ("price_in", "price_out")


def flags(command: argparse.ArgumentParser) -> None:
    """Add the flags of a command that sends traffic."""
    permission(command)
    add = command.add_argument
    caps, pace = manners.DEFAULT_CAPS, manners.DEFAULT_PACE
    guest = "for a target that is not this machine"
    add("--max-requests", type=_positive, metavar="N",
        help="never send more, survey, retries and replays included; what is planned is cut to fit "
        f"(default {guest}: {caps.requests})")  # fmt: skip
    add("--max-tokens-total", type=_positive, metavar="N",
        help="never take more tokens of prompts and answers, as the target counts them or else by "
        f"characters (default {guest}: {caps.tokens})")  # fmt: skip
    add("--max-cost", type=float, metavar="USD",
        help="never spend more; needs --price-in and --price-out")  # fmt: skip
    add("--price-in", type=float, metavar="USD", help="price of a million tokens of prompts")
    add("--price-out", type=float, metavar="USD", help="price of a million tokens of answers")
    add("--max-rate", metavar="N/UNIT",
        help="send no more in any second, minute or hour, such as 2/s, 60/m or 20/30s, over all "
        f"workers, retries included (default {guest}: {pace.requests}/m)")  # fmt: skip
    add("--max-in-flight", type=_positive, metavar="N",
        help="have no more requests in flight at one time "
        f"(default {guest}: {pace.in_flight})")  # fmt: skip
    add("--max-errors", metavar="SHARE",
        help="end the run when more of the last attempts fail, refusals that are waited out not "
        f"counted (default {guest}: {100 * (pace.max_errors or 0):g}%%)")  # fmt: skip
    add("--max-wait-s", type=float, metavar="N",
        help="end the run when the target asks for a longer pause "
        f"(default {pace.max_wait_s:g})")  # fmt: skip


def permission(command: argparse.ArgumentParser) -> None:
    """Add the flag of a command that may send something to somebody else's machine."""
    command.add_argument(
        manners.FLAG,
        action="store_true",
        help="I may send test traffic to this target, which is not this machine (or name its host "
        f"in {manners.FILE}: allowed_hosts)",
    )


def require_permission(arguments: argparse.Namespace, target: Target | None, page: str) -> None:
    """Raise UsageError where a packet would go to a host that nobody gave leave for. `page` is the
    metrics page, if it is a URL.
    """
    if target is not None:
        pages = (page,) if "://" in page else ()
        manners.require_permission(target, *pages, said_yes=arguments.yes_i_am_allowed)


def limits(arguments: argparse.Namespace, target: Target | None) -> dict[str, Any]:
    """`caps` and `pace` of a setup: what was asked for, and the defaults for a guest."""
    asked_caps, asked_pace = _caps(arguments), _pace(arguments)
    if target is None:
        home = Target(base_url="http://127.0.0.1", model="")
        return {"caps": asked_caps, "pace": manners.pace_of(home, asked_pace)}
    return {
        "caps": manners.caps_of(target, asked_caps),
        "pace": manners.pace_of(target, asked_pace),
    }


def planned(options: Options) -> Options:
    """What is asked for, cut to the budget; the budget and the pace are printed first."""
    from leakcheck.planning import allotment  # noqa: PLC0415 - heavy

    target = options.setup.target
    keys = 1 if target is None else max(1, len(target.tenants))
    of = allotment.allot(options.scenarios, options.overrides, options.setup.caps, keys=keys)
    show(*of.sentences(options.setup.pace), pace=options.setup.pace)
    return replace(
        options,
        scenarios=tuple(each.path for each in of.played),
        own={each.path: each.overrides for each in of.played},
    )


def show(*sentences: str, pace: Pace | None) -> None:
    """Print what is about to be sent at most, in plain words."""
    width = shutil.get_terminal_size((100, 40)).columns
    paced = () if pace is None else (manners.sentence(pace),)
    for text in (*sentences, *paced):
        print(textwrap.fill(text, max(width, 40), subsequent_indent="  "), flush=True)


def resumed(arguments: argparse.Namespace, folder: Path) -> None:
    """Ask for permission as for a new run, where there is a run to go on with."""
    if (folder / "run.json").is_file():
        from leakcheck import runfolder  # noqa: PLC0415 - heavy

        origin = runfolder.read_provenance(folder)
        require_permission(arguments, None if origin.engine else origin.target, "")


def _caps(arguments: argparse.Namespace) -> Caps:
    prices = {name: getattr(arguments, name) for name in _PRICES}
    given = [name for name, value in prices.items() if value is not None]
    for name in _PRICES:
        flag = "--" + name.replace("_", "-")
        value = prices[name]
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{flag}: {value:g} is out of range; use a number from 0")
        if value is None and given:
            raise UsageError(
                f"{flag} is missing: a cost needs the prices of prompts and of answers"
            )
    cost = arguments.max_cost
    if cost is not None and not (math.isfinite(cost) and cost > 0):
        raise UsageError(f"--max-cost: {cost:g} is out of range; use a number above 0")
    if cost is not None and not given:
        raise UsageError("--max-cost: give the prices too, with --price-in and --price-out")
    return Caps(
        requests=arguments.max_requests,
        tokens=arguments.max_tokens_total,
        cost_usd=cost,
        prompt_usd=prices["price_in"],
        answer_usd=prices["price_out"],
    )


def _pace(arguments: argparse.Namespace) -> Pace:
    wait_s = arguments.max_wait_s
    if wait_s is not None and not (math.isfinite(wait_s) and wait_s > 0):
        raise UsageError(f"--max-wait-s: {wait_s:g} is out of range; use a number above 0")
    errors = arguments.max_errors
    return Pace(
        **({} if arguments.max_rate is None else _rate(arguments.max_rate)),
        in_flight=arguments.max_in_flight,
        max_errors=None if errors is None else asked.percent("--max-errors", errors),
        **({} if wait_s is None else {"max_wait_s": wait_s}),
    )


def _rate(text: str) -> dict[str, Any]:
    found = _RATE.fullmatch(text.strip())
    number, span_s = 0, 0.0
    if found is not None:
        number, span_s = int(found[1]), float(found[2] or 1) * _SECONDS[found[3]]
    if not number or not span_s:
        raise UsageError(f"--max-rate: {text!r} is no rate; write it as 2/s, 60/m or 20/30s")
    return {"requests": number, "per_s": span_s}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
