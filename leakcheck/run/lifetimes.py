"""Several lifetimes of the target in one run: it is started anew between blocks of windows.

What one lifetime does wrong, all of its windows may do wrong: a race that was lost at its start, a
cache that was filled once, a random number that was drawn once. Windows of several lifetimes are
nearer to what a bound over windows takes for granted. The embedded engine is restarted by
leakcheck, any other target by a command of the user.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from leakcheck import history, planning, plugin, survey
from leakcheck.backends import Broken, Refused, Turns
from leakcheck.backends._http import Connection
from leakcheck.budget import spending
from leakcheck.errors import HarnessError, LeakcheckError, TargetError, UsageError
from leakcheck.history import History
from leakcheck.records import (
    Plan,
    Provenance,
    Request,
    RunEvent,
    Scenario,
    Target,
    TargetFacts,
)
from leakcheck.redact import inherited, one_line, redact, secrets
from leakcheck.run import gauges, session, signs
from leakcheck.run.session import Session

COMMAND_S = 120.0
"""How long a command that restarts a target may take: it is to return once that is under way."""
BACK_S = 600.0
"""How long the target may take to answer again after that."""
_ASK_EVERY_S = 1.0
SHOW_S = 3.0
"""How long after the command a sign that the target restarts is waited for."""
UNSEEN = "the command returned 0; whether the target restarted was not seen"
AS_IT_IS = 2
"""Windows of a scenario which may want a lifetime for each, before it is asked whether it does."""
_BROKEN = 500


def send(
    live: Session,
    origin: Provenance,
    plan: Plan,
    todo: Sequence[Request],
    on_window: Callable[[int], bool],
) -> RunEvent | None:
    """Send what is left of a scenario as `Session.send`, with a restart between two blocks.

    Raises HarnessError, one sentence, where the target does not come back.
    """
    name, enough, sent = plan.scenario.name, False, False
    if _may_want(plan.scenario) and can_restart(live, origin):
        return _send_by_need(live, origin, plan, todo, on_window)

    def told(window: int) -> bool:
        nonlocal enough
        enough = on_window(window)
        return enough

    size = block_size(plan, origin.lifetimes, origin.facts, play_all=origin.play_all)
    blocks: dict[int, list[Request]] = {}
    for request in todo:
        blocks.setdefault(min(request.window // size, origin.lifetimes - 1), []).append(request)
    for number, block in sorted(blocks.items()):
        which = f"{number + 1} of {origin.lifetimes}"
        if sent:
            restart(live, origin, f"{name}: lifetime {which}")
        what = name if origin.lifetimes == 1 else f"{name} ({which})"
        ended = live.send(what, block, told, until_dead=True)
        if ended is not None or enough:
            return ended
        sent = True
    return None


def can_restart(live: Session, origin: Provenance) -> bool:
    """Whether the target can be started anew: the embedded engine, or one with a command."""
    return live.opened.engine is not None or origin.restart is not None


def wanted(folder: Path, scenario: Scenario) -> bool:
    """Whether a check of the scenario, by what was seen so far, tells more of a window that begins
    a lifetime of the target (a function `wants_restarts` of it).
    """
    if not _may_want(scenario):
        return False
    mine = history.read(folder).scenario(scenario.name)
    return any(wants(mine) for wants in _may_want(scenario))


def _may_want(scenario: Scenario) -> list[Callable[[History], bool]]:
    found = (plugin.find("checks", each.name, "wants_restarts") for each in scenario.checks)
    return [each for each in found if each is not None]


def _send_by_need(
    live: Session,
    origin: Provenance,
    plan: Plan,
    todo: Sequence[Request],
    on_window: Callable[[int], bool],
) -> RunEvent | None:
    """As `send`: some windows to the target as it is, then, if a check wants it, each of the others
    to one that was just started and has not been sent anything.
    """
    name, enough, anew = plan.scenario.name, False, None
    windows: dict[int, list[Request]] = {}
    for request in todo:
        windows.setdefault(request.window, []).append(request)

    def told(window: int) -> bool:
        nonlocal enough
        enough = on_window(window)
        return enough

    for number, window in sorted(windows.items()):
        if anew is None and number >= AS_IT_IS:
            anew = wanted(live.folder, plan.scenario)
        which = f"window {number + 1} of {plan.scenario.load.windows}"
        if anew:
            restart(live, origin, f"{name}: {which}", untouched=True)
        what = f"{name} ({which})" if anew else name
        ended = live.send(what, window, told, until_dead=True)
        if ended is not None or enough:
            return ended
    return None


def block_size(plan: Plan, lifetimes: int, facts: TargetFacts, *, play_all: bool = False) -> int:
    """Windows that a lifetime gets; the last one gets what is left, replays included.

    A scenario may end before its budget. The blocks divide the windows that it takes to see a leak,
    as `planning` counts them, which are fewer than a certificate takes, so that every lifetime is
    seen by then; with `play_all` they divide the budget.
    """
    windows = plan.scenario.load.windows
    if lifetimes > 1 and plan.scenario.checks and not play_all:
        needs = planning.bill(plan.scenario, planning.Terms(), facts=facts).needs
        windows = min(windows, needs[0].windows or windows)
    return max(1, windows // lifetimes)


def require_windows(scenarios: Sequence[Scenario], lifetimes: int) -> None:
    """Raise UsageError where a scenario has fewer windows than there are to be lifetimes."""
    for each in scenarios:
        if each.load.windows < lifetimes:
            raise UsageError(
                f"--lifetimes: {lifetimes} lifetimes need a window each, and {each.name} has "
                f"{each.load.windows} (load.windows): ask for fewer, or for more --windows"
            )


def restart(live: Session, origin: Provenance, detail: str, *, untouched: bool = False) -> None:
    """End the present lifetime of the target and wait until the next one answers; note that as
    `restarted` with this `detail`, or as `restart-unseen` where nothing showed that the command of
    a user did it. Nothing may be in flight. Left `untouched`, it is only asked for its list of
    models: what is sent next is the first that it generates. Raises HarnessError.
    """
    opened = live.opened
    target = opened.target
    kind = "restarted"
    live.watch("restart", 0, 1)
    try:
        if opened.engine is not None:
            flags = list((origin.engine or {}).get("flags", ()))
            ready = opened.engine.restart(flags)
            ready["flags"] = flags
            target = replace(target, base_url=ready["base_url"])
        elif origin.restart is not None:
            ask = listening if untouched else partial(_met_again, live, _turns(live))
            with signs.watched(target, opened.page) as seen:
                order(origin.restart)
                seen.wait(SHOW_S)
                wait_until_back(target, ask=ask)
                why = seen.seen()
            kind = "restart-unseen" if why is None else kind
            detail = f"{detail}: {why or UNSEEN}"
    except LeakcheckError as error:
        why = redact(str(error), secrets(target))
        raise HarnessError(f"the target could not be restarted: {why}") from None
    live.runner.move(target, live.folder)  # the connections are dead, and the address may be new
    if live.sampler is not None and opened.engine is not None:
        page = gauges.source(target)
        assert page is not None  # noqa: S101 - an embedded engine is of this machine
        live.sampler.aim(page)
    session.note(live.folder, kind, detail)
    live.watch("restart", 1, 1)


def order(command: str, patience_s: float = COMMAND_S) -> None:
    """Run the command that restarts a target, without a shell. Raises UsageError where it cannot be
    run, fails, or does not end.
    """
    with tempfile.TemporaryFile() as log:  # no pipe: what it starts may keep that open for ever
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for leakcheck, and not for the target
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"--restart: {command!r} cannot be run ({reason})") from None
        code = _ended(process, command, patience_s)
        if code != 0:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            why = f": {one_line(redact(said, inherited()))}" if said else ""
            raise UsageError(f"--restart: {command!r} ended with exit code {code}{why}")


def _ended(process: subprocess.Popen[bytes], command: str, patience_s: float) -> int:
    """The exit code of a process that leads a group; whatever interrupts the wait kills the group.

    What the process leaves running when it returns is the target, and stays.
    """
    try:
        return process.wait(patience_s)
    except BaseException as error:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise UsageError(
            f"--restart: {command!r} did not end within {patience_s:g} s; it is to return "
            "while the target runs on in the background"
        ) from None


def listening(target: Target) -> None:
    """Ask a target that is spoken to over HTTP for its list of models, which any status below 500
    answers. Raises TargetError where nobody does.
    """
    if target.base_url.startswith(("http://", "https://")):
        asyncio.run(_listening(target))


async def _listening(target: Target) -> None:
    connection = Connection(target)
    try:
        async with asyncio.timeout(target.timeout_s):
            page = await connection.get(connection.url("models"))
    except (Broken, Refused, TimeoutError) as error:
        raise TargetError(f"nobody answers at {target.base_url}: {error}") from None
    finally:
        await connection.close()
    if page.status >= _BROKEN:
        raise TargetError(f"{target.base_url} answers with status {page.status}")


def _met_again(live: Session, turns: Turns, target: Target) -> None:
    """Ask a target that may be back as before a run, or only whether it listens where no request
    is left; the budget and the pace know of it. Raises as `survey.meet`.
    """
    governor, before = live.governor, len(turns.sent_s)
    if governor is not None and governor.purse.room == 0:
        listening(target)
        return
    try:
        survey.meet(target, turns)
    finally:
        sent_s = turns.sent_s[before:]
        if governor is not None and sent_s:
            used = spending.met(len(sent_s))
            governor.remember(sent_s, used)
            session.note(live.folder, spending.MET, spending.unplanned(used, "after a restart"))


def _turns(live: Session) -> Turns:
    """Those of one restart, within the budget and the pace."""
    if live.governor is None:
        return Turns()
    pace = live.governor.pace
    return Turns(
        live.governor.purse.room,
        pause_s=session.distance_s(pace),
        max_wait_s=None if pace is None else pace.max_wait_s,
    )


def wait_until_back(
    target: Target,
    patience_s: float = BACK_S,
    *,
    ask: Callable[[Target], object] = survey.meet,
) -> None:
    """Wait until the target answers when it is asked, by default as before a run. Raises
    TargetError where it does not.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            ask(target)
        except LeakcheckError as error:  # of a wrong key or model too: it may be half started
            if time.monotonic() > deadline:
                raise TargetError(
                    f"it did not answer within {patience_s:g} s after --restart ({error})"
                ) from None
            time.sleep(_ASK_EVERY_S)
        else:
            return
