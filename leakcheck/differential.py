"""`leakcheck diff`: the scenario mixed-batch-differential on its own, within a budget.

What it may cost is reckoned before anything is sent, replays included, and a cap is kept by
planning fewer windows, then smaller companies; what it found is said in one paragraph.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakcheck import evidence, history, planning, scenario, survey
from leakcheck.analyzer import confirm
from leakcheck.checks import divergence, liveness
from leakcheck.errors import UsageError
from leakcheck.passphrase import load_words
from leakcheck.records import Report, Scenario, TargetFacts

NAME = "mixed-batch-differential"
WINDOWS = 30
LEAST_WINDOWS = 13
"""Without any difference so many exclude what happens in every fifth window. (Grade D0 takes 100.)
"""
COMPANY_SIZES = (16, 12, 8, 6)
"""Requests of a phase, companions included; smaller ones only where a cap asks for it."""
_TOKENS_PER_WORD = 2.0
_TEMPLATE_TOKENS = 20
_ECHO = 0.75
"""What is reckoned with before anything is measured, to say which leaks the windows exclude."""
_ENOUGH_TRIALS = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What must not be exceeded, replays included; None: no limit. Tokens are of both ways."""

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run sends: `planned` requests (the survey among them) and at most `replays` more.

    `tokens` is the worst case of all of it: prompts at two tokens a word, answers as long as they
    may be. `detect` is the rate of leaks, of windows, that so many windows can exclude. `per_phase`
    requests are in flight at one time.
    """

    windows: int
    per_phase: int
    planned: int
    replays: int
    tokens: int
    detect: float

    @property
    def most(self) -> int:
        """Requests in the worst case."""
        return self.planned + self.replays

    def sentence(self) -> str:
        """The budget, in words."""
        return (
            f"budget: {self.windows} windows with up to {self.per_phase} requests at one time, "
            f"{self.planned} requests in all, and up to {self.replays} replays where there is a "
            f"suspicion: at most {self.most} requests and {self.tokens} tokens (prompts at two "
            "tokens a word, answers at full length; refused requests come again)"
        )

    def overrides(self) -> dict[str, Any]:
        """What to put in place of the scenario's own values."""
        return {
            "load.windows": self.windows,
            "load.requests": self.per_phase,
            "gate.min_windows": max(1, int(_ENOUGH_TRIALS * self.windows)),
            "gate.detect": self.detect,
        }


def budget(asked: Mapping[str, Any], caps: Caps) -> Budget:
    """The most windows that the caps allow, at most those asked for, in the largest company.

    Raises UsageError where they allow too few, and for values that the scenario cannot have.
    """
    wanted = int(asked.get("load.windows", WINDOWS))
    sizes = (asked["load.requests"],) if "load.requests" in asked else COMPANY_SIZES
    least = min(wanted, LEAST_WINDOWS)
    tried = [_fitting({**asked, "load.requests": size}, wanted, caps) for size in sizes]
    for found in tried:
        if found.windows >= least:
            return found
    smallest = _budget({**asked, "load.requests": sizes[-1]}, least)
    raise UsageError(
        f"the caps are too small: {least} windows with {sizes[-1]} requests at one time take up to "
        f"{smallest.most} requests and {smallest.tokens} tokens, replays included; raise "
        "--max-requests or --max-tokens-total, or send fewer --windows"
    )


def _fitting(asked: Mapping[str, Any], wanted: int, caps: Caps) -> Budget:
    """As many windows as fit, up to those wanted; 0 where none does."""
    one, two = _budget(asked, 1), _budget(asked, 2)
    room = wanted
    for cap, first, second in (
        (caps.requests, one.most, two.most),
        (caps.tokens, one.tokens, two.tokens),
    ):
        if cap is not None:
            room = min(room, max(0, (cap - first) // max(1, second - first) + 1))
    return _budget(asked, room) if room else replace(one, windows=0)


def _budget(asked: Mapping[str, Any], windows: int) -> Budget:
    read = scenario.read(scenario.find(NAME), {**asked, "load.windows": windows})
    of = planning.sample(read, TargetFacts(reports_logprobs=True), windows=4)
    per_window = of.requests // of.windows
    planned = _surveyed(read) + windows * per_window
    replays = confirm.most(per_phase=read.load.requests, per_window=per_window) + liveness.PROBES
    each = _TEMPLATE_TOKENS + _TOKENS_PER_WORD * of.prompt_tokens + of.answer_tokens
    shown = _ECHO * of.asked / max(1, of.recipients)
    detect = evidence.upper_bound(0, windows) / shown if shown else 1.0
    return Budget(
        windows=windows,
        per_phase=read.load.requests,
        planned=planned,
        replays=replays,
        tokens=math.ceil((planned + replays) * each),
        detect=float(asked.get("gate.detect", min(0.99, detect))),
    )


def _surveyed(of: Scenario) -> int:
    length = of.load.passphrase_words
    words = load_words()
    first = survey.plan(seed=0, words=words, style="phrase", ids=itertools.count(), length=length)
    return len(first.requests)


def answer(report: Report, folder: Path) -> str:
    """What was compared, what came of it, and what it could not have seen: one paragraph."""
    run = history.read(folder)
    if NAME not in run.scenarios():
        return f"{report.status}: the run ended before anything was compared."
    part = run.scenario(NAME)
    judged = next((each for each in report.verdicts if each.scenario == NAME), None)
    compared = divergence.check(part)
    notes = compared.notes if compared.findings else (compared.notes[0], *compared.notes[2:])
    windows = int((~part.windows["replay"]).sum())
    load = part.plans[0].scenario.load
    sent = (
        f"In {windows} windows the same requests were sent alone, in two neutral companies and in "
        f"one that carries passphrases, {load.requests} at one time."
    )
    text = [sent, *(f"{note[0].upper()}{note[1:]}." for note in notes)]
    if judged is not None:
        more = len(judged.reasons) - 1
        also = f" ({more} more in the report)" if more else ""
        text.append(f"Verdict: {judged.status}: {judged.reasons[0].rstrip('.')}{also}.")
    text.append(_unseen(None if judged is None else judged.bound))
    return " ".join(text)


def _unseen(bound: float | None) -> str:
    rarer = "rare leaks"
    if bound is not None and bound < 1:
        rarer = f"leaks in less than {100 * bound:.2g} % of windows"
    return (
        f"It could not have seen {rarer}, a fault that changes an answer in the same way whatever "
        "the companions say, one that was in the prefix cache before the first comparison, and "
        "what only other traffic shows (aborts, full caches, shared prefixes: leakcheck run)."
    )
