"""`leakcheck diff`: the scenario mixed-batch-differential on its own, within a budget.

It is to exclude leaks in a stated share of windows, and takes as many windows as `planning` counts
for that. What it may cost is reckoned before anything is sent. A cap makes companies smaller, and
then windows fewer, which is said; `spending` keeps it while the run lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakcheck import history, planning, scenario
from leakcheck.analyzer import confirm
from leakcheck.budget.spending import Caps, Use, cost_usd
from leakcheck.checks import _mixed, _suspects, divergence, liveness
from leakcheck.errors import UsageError
from leakcheck.history import History
from leakcheck.planning import allotment
from leakcheck.records import Report, Scenario, TargetFacts, Verdict
from leakcheck.report import sentences
from leakcheck.report.counting import many
from leakcheck.traffic.mixed_batch import COMPANIES

__all__ = ["Budget", "Caps", "answer", "budget"]

NAME = "mixed-batch-differential"
DETECT = 0.1
"""The rate of leaks, of windows, that a clean verdict excludes where nobody asks for another."""
WINDOWS = {10: 85, 8: 87, 6: 93}
"""Requests of a phase, companions included, and the windows that exclude DETECT then, by the rule
of `planning` at the echo that it assumes (a test keeps them so). The first is the default, the
largest company that takes no more than 3,500 requests for that; smaller ones only where a cap asks
for it.
"""
_ASSUMED = "with echoes as they are assumed, before anything is measured"
_RECIPIENTS = 4
_DECIDES = ("gate.detect", "traffic.", "load.")
"""Values that change how many windows it takes begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run sends: `planned` requests (what comes before the first window among them) and at
    most `replays` more.

    `use` is an estimate for what is planned: prompts at two tokens a word, answers as long as they
    may be. `needed` windows exclude leaks in `detect` of them; None where no number does.
    `per_phase` requests are in flight at one time.
    """

    windows: int
    needed: int | None
    per_phase: int
    use: Use
    replays: int
    detect: float
    caps: Caps

    @property
    def planned(self) -> int:
        """Requests."""
        return self.use.requests

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return self.use.tokens

    @property
    def most(self) -> int:
        """Requests in the worst case, but for those that a target refuses and is asked again."""
        worst = self.planned + self.replays
        return worst if self.caps.requests is None else min(worst, self.caps.requests)

    def sentence(self) -> str:
        """The budget, in words."""
        replays = self.most - self.planned
        again = f"up to {replays:,} replays" if replays else "no replays"
        text = (
            f"budget: {many(self.windows, 'window')} with up to {self.per_phase} requests at one "
            f"time, {self.planned:,} requests in all, and {again} where there is a suspicion; "
            f"about {allotment.rounded(self.tokens):,} tokens without replays (an estimate: "
            "prompts at two tokens a word, answers at full length)"
        )
        return "; ".join((text, *self._short()))

    def _short(self) -> Iterator[str]:
        """What the budget is not enough for."""
        if self.caps.tokens is not None and self.tokens > self.caps.tokens:
            yield f"the cap of {self.caps.tokens:,} tokens may end it before"
        if self.caps.cost_usd is not None and cost_usd(self.caps, self.use) > self.caps.cost_usd:
            yield f"the cap of ${self.caps.cost_usd:,.2f} may end it before"
        aim = f"exclude leaks in {_share(self.detect)} of windows"
        if self.needed is None:
            yield f"no number of windows can {aim}"
        elif self.windows < self.needed:
            yield (
                f"to {aim} takes about {many(self.needed, 'window')} {_ASSUMED}, so without a leak "
                "this will most likely be inconclusive"
            )
        else:
            yield f"enough to {aim} {_ASSUMED} (--detect asks for another share)"

    def overrides(self) -> dict[str, Any]:
        """What to put in place of the scenario's own values."""
        return {
            "load.windows": self.windows,
            "load.requests": self.per_phase,
            "gate.detect": self.detect,
        }


def budget(asked: Mapping[str, Any], caps: Caps, *, keys: int = 1) -> Budget:
    """The windows asked for, else those that it takes, in the largest company that the caps allow;
    where they allow none with so many, as many as fit in the smallest. The target is met with each
    of `keys`.

    Replays come out of what a cap of requests leaves. Raises UsageError where not one window fits,
    and for values that the scenario cannot have.
    """
    asked = {"gate.detect": DETECT, **asked}
    sizes = (asked["load.requests"],) if "load.requests" in asked else tuple(WINDOWS)
    _require_companions(asked)
    every = [_budget({**asked, "load.requests": size}, caps, keys) for size in sizes]
    for found in every:
        if _fits(found):
            return found
    smallest = {**asked, "load.requests": sizes[-1]}
    one, two = (_budget({**smallest, "load.windows": n}, caps, keys) for n in (1, 2))
    if not _fits(one):
        would = allotment.enough(
            caps,
            lambda raised: _budget({**smallest, "load.windows": 1}, raised, keys).use,
            reserve=0.0,
        )
        raise UsageError(f"{_too_small(one)}; enough is {allotment.flags(would)}")
    windows = every[-1].windows
    if caps.requests is not None:
        room = (caps.requests - one.planned) // (two.planned - one.planned)
        windows = min(windows, 1 + room)
    return _budget({**smallest, "load.windows": windows}, caps, keys)


def _fits(of: Budget) -> bool:
    return allotment.fits(of.caps, [of.use], reserve=0.0)


def _too_small(one: Budget) -> str:
    if one.caps.requests is not None and one.planned > one.caps.requests:
        return (
            f"--max-requests: {one.caps.requests} is too small: the survey and one window with "
            f"{one.per_phase} requests at one time are {one.planned} requests"
        )
    if one.caps.tokens is not None and one.tokens > one.caps.tokens:
        return (
            f"--max-tokens-total: {one.caps.tokens} is too small: the survey and one window with "
            f"{one.per_phase} requests at one time take about "
            f"{allotment.rounded(one.tokens)} tokens"
        )
    return (
        f"--max-cost: {one.caps.cost_usd:g} is too small: the survey and one window with "
        f"{one.per_phase} requests at one time cost about ${cost_usd(one.caps, one.use):.2f}"
    )


def _require_companions(asked: Mapping[str, Any]) -> None:
    size, recipients = asked.get("load.requests"), asked.get("traffic.recipients", _RECIPIENTS)
    if isinstance(size, int) and isinstance(recipients, int) and size <= recipients:
        raise UsageError(
            f"--requests: {size} is too small: {recipients} of the requests at one time are those "
            f"that are compared, and at least one is to be their company; give {recipients + 1} or "
            "more"
        )


def _budget(asked: Mapping[str, Any], caps: Caps, keys: int) -> Budget:
    needed = _needed(asked)
    windows = int(asked.get("load.windows", needed or next(iter(WINDOWS.values()))))
    read = scenario.read(scenario.find(NAME), {**asked, "load.windows": windows})
    of = planning.sample(read, TargetFacts(reports_logprobs=True), windows=4)
    per_window = of.requests // of.windows
    use = allotment.each_use(of.prompt_tokens, of.answer_tokens, windows * per_window)
    return Budget(
        windows=windows,
        needed=needed,
        per_phase=read.load.requests,
        use=allotment.before([read], caps, keys=keys) + use,
        replays=confirm.most(per_phase=read.load.requests, per_window=per_window) + liveness.PROBES,
        detect=read.gate.detect,
        caps=caps,
    )


def _needed(asked: Mapping[str, Any]) -> int | None:
    """Windows that 95 of 100 runs certify `gate.detect` with; None where no number is enough."""
    size = asked["load.requests"]
    others = {key for key in asked if key.startswith(_DECIDES)} - {"load.windows", "load.requests"}
    if size in WINDOWS and others == {"gate.detect"} and asked["gate.detect"] == DETECT:
        return WINDOWS[size]
    read = scenario.read(scenario.find(NAME), {**asked, "load.windows": 1})
    return planning.bill(read, planning.Terms()).needs[-1].windows


def _share(rate: float) -> str:
    return f"{100 * rate:.3g} %"


# --- the answer ----------------------------------------------------------------------------------


def verdict(report: Report) -> str:
    """The verdict, in one sentence."""
    judged = _judged(report)
    if judged is None:
        return f"{report.status}: the run ended before anything was compared"
    if report.status == "inconclusive":
        return f"inconclusive: {'; '.join(_open(report, judged))}"
    return f"{report.status}: {sentences.headline(report)}"


def _open(report: Report, judged: Verdict) -> Iterator[str]:
    """Why it is open: what ended the run, then the bound reached and what it takes, then more."""
    bound, sent = judged.bound, judged.leak_rate.trials
    of = next(each for each in report.provenance.scenarios if each.name == NAME)
    detect = of.gate.detect
    yield from (reason for reason in judged.reasons if _SPENT in reason)
    if bound is None or bound > detect:
        most = 1.0 if bound is None else bound
        reached = f"exclude leaks in more than {sentences.percent(most, 'up')} of windows only"
        if most >= 1:
            reached = "exclude no rate of leaks"
        yield (
            f"nothing leaked in {many(sent, 'window')}, which {reached}: {_share(detect)} is to be "
            f"excluded{_takes(of, judged)}"
        )
    spent = any(_SPENT in reason for reason in judged.reasons)
    said = (*_SAID, "answered") if spent else _SAID  # what was not sent was not answered
    yield from [r for r in judged.reasons if _SPENT not in r and not r.startswith(said)][:1]


_SPENT = "was used up"
_SAID = ("the bound is too high", "too few windows")


def _takes(of: Scenario, judged: Verdict) -> str:
    """The windows that it takes, by what was measured; by the plan where that is too little."""
    needed, how = judged.windows_needed, "with echoes as in this run"
    if needed is None:
        needed = _needed({"load.requests": of.load.requests, "gate.detect": of.gate.detect})
        how = "with echoes as they are assumed of any target"
    return (
        "" if needed is None else f", which takes about {many(needed, 'window')} {how} (--windows)"
    )


def answer(report: Report, folder: Path) -> tuple[str, ...]:
    """What was compared and what came of it, a line each; what a target said is in none of them."""
    run = history.read(folder)
    judged = _judged(report)
    if judged is None or NAME not in run.scenarios():
        return ()
    part = run.scenario(NAME)
    notes = divergence.check(part).notes
    return tuple(
        f"{name + ':':14}{text[0].upper()}{text[1:]}."
        for name, text in (
            ("grade", notes[0].removeprefix("grade ").replace("no grade: ", "not yet: ", 1)),
            ("compared", _compared(part)),
            *((("weighed", notes[1]),) if len(notes) > 1 else ()),
            ("differences", _differ(part)),
            ("not seen", _unseen(judged)),
        )
    )


def _judged(report: Report) -> Verdict | None:
    return next((each for each in report.verdicts if each.scenario == NAME), None)


def _compared(part: History) -> str:
    sent = part.requests[part.requests["replays"].isna() & (part.requests["outcome"] != "unsent")]
    load = part.plans[0].scenario.load
    windows = sent["window"].nunique()
    of = "" if windows == load.windows else f" of {load.windows} planned"
    return (
        f"in {many(windows, 'window')}{of} the same requests were "
        "sent alone, in two neutral companies and in one that carries passphrases, "
        f"{load.requests} at one time"
    )


def _differ(part: History) -> str:
    """How many answers differ, how many beyond the noise, and what replays said of those."""
    of = _mixed.trials(part)
    rule = _mixed.threshold(part, of)
    seen = [each.compared[cell] for each in of for cell in COMPANIES if cell in each.compared]
    differ = sum(each.at is not None for each in seen)
    text = f"{differ} of {many(len(seen), 'answer')} in company differ from the same alone"
    wide = len({each.request for each in _suspects.beyond(of, rule)})
    if not wide:
        return f"{text}{', none beyond the noise' if differ else ''}; none was sent again"
    accused = _suspects.suspects(of, rule)
    told = [(each, _suspects.replays(part, each)) for each in accused]
    again = sum(replays.planned > 0 for _, replays in told)
    text += f", {wide} beyond the noise and in one company only"
    if not again:
        return f"{text}; none was sent again"
    level = _suspects.level(accused)
    held = sum(_suspects.confirmed(each, replays, level) for each, replays in told)
    if wide == 1:
        return f"{text}; it was sent again and {'' if held else 'not '}confirmed by that"
    whom = f"{again} of them {'was' if again == 1 else 'were'}"
    return f"{text}; {whom} sent again, and {held or 'none'} confirmed by that"


def _unseen(judged: Verdict) -> str:
    most = sentences.excluded(judged) if judged.status == "clean" else ""
    rarer = f"leaks in less than {most} of windows; " if most else ""
    return (
        f"{rarer}a fault that changes an answer in the same way whatever the companions say, one "
        "that was in the prefix cache before the first comparison, and what only other traffic "
        "shows (aborts, full caches, shared prefixes: leakcheck run)"
    )
