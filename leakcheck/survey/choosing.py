"""What the passphrases of a run are made of: words and length, a style and phrasing by audition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakcheck import runfolder, scenario, survey
from leakcheck.errors import TargetError, UsageError
from leakcheck.passphrase import (
    assert_separate,
    load_words,
    require_entropy,
    styles,
    whole_token_words,
)
from leakcheck.records import Echo, Plan, Scenario, Style, TargetFacts
from leakcheck.run.session import Session, Setup
from leakcheck.survey import audition

_LONGER = 4
"""Words that a passphrase may grow by where a run needs more entropy."""
LENGTH = "load.passphrase_words"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a run is planned with: the survey `first`, which fixes seed and words, and its
    scenarios; what was heard before it, in the plans `heard_in`, and what is to be said of it.
    """

    first: Plan
    scenarios: tuple[Scenario, ...]
    notes: tuple[str, ...] = ()
    heard_in: tuple[Plan, ...] = ()
    echoes: tuple[Echo, ...] = ()

    def facts(self, found: TargetFacts) -> TargetFacts:
        """With what the survey found."""
        notes = (*self.notes, *found.notes)
        if not self.echoes:
            return replace(found, notes=notes)
        chosen = audition.best(self.echoes)
        return replace(
            found,
            style=self.first.style,
            phrasing=chosen.phrasing,
            echoes=self.echoes,
            notes=notes,
        )

    def plans(self, facts: TargetFacts) -> tuple[Plan, ...]:
        """Plan all scenarios after what was sent before, with its seed and words.

        Proves, before anything of them is sent, that a match will mean a leak.
        """
        before = (*self.heard_in, self.first)
        ids = itertools.count(sum(len(plan.requests) for plan in before))
        first = self.first
        plans = tuple(
            scenario.plan(
                each, seed=first.seed, facts=facts, words=first.words, style=first.style, ids=ids
            )
            for each in self.scenarios
        )
        require_entropy((*before, *plans))
        assert_separate((*before, *plans))
        return plans


def made(scenarios: Sequence[Scenario], setup: Setup, tokenizer: Any) -> Made:
    """What a run is made with where nothing was measured.

    Words of a file are taken as they are. Of the shipped ones, those that are whole tokens of a
    known tokenizer are taken if the run can do with them, else all, as phrases. Raises UsageError
    where no words will do.
    """
    words = load_words(setup.words)
    whole = () if tokenizer is None else whole_token_words(tokenizer, words)
    if len(whole) == len(words):
        return _with(scenarios, setup, words, "rare-token")
    if setup.words is None and whole:
        try:
            return _with(scenarios, setup, whole, "rare-token")
        except UsageError:
            pass  # too few for such a run
    few = (
        f"passphrases are words of several tokens: only {len(whole)} of {len(words)} listed words "
        "are whole tokens of this tokenizer, too few for this run (leakcheck words finds others)"
    )
    usual = _with(scenarios, setup, words, "phrase")
    return replace(usual, notes=() if tokenizer is None or setup.words else (few,))


def _with(
    scenarios: Sequence[Scenario],
    setup: Setup,
    words: Sequence[str],
    style: Style,
    heard_in: tuple[Plan, ...] = (),
) -> Made:
    """A run with these words. Raises UsageError where they will not do."""
    tenants = () if setup.target is None else setup.target.tenants
    hottest = survey.HOT if setup.target is None else setup.target.hottest
    names = [each.name for each in tenants]
    first = survey.plan(
        seed=setup.seed,
        words=words,
        style=style,
        ids=itertools.count(sum(len(plan.requests) for plan in heard_in)),
        length=max(each.load.passphrase_words for each in scenarios),
        hottest=hottest,
    )
    first = _in_turns(first, names)
    done = Made(first=first, scenarios=tuple(scenarios), heard_in=heard_in)
    done.plans(TargetFacts())
    return done


def _in_turns(first: Plan, names: Sequence[str]) -> Plan:
    """The survey with its windows dealt to the keys of these tenants in turn."""
    if not names:
        return first
    requests = (replace(each, key=names[each.window % len(names)]) for each in first.requests)
    return replace(first, requests=tuple(requests))


# --- by audition ---------------------------------------------------------------------------------


def auditioned(
    live: Session, usual: Made, setup: Setup, tokenizer: Any, overrides: Mapping[str, Any]
) -> Made | None:
    """What a run is made with after measuring what the target echoes, or what was measured less
    than a day ago; None where the run ended meanwhile. `usual` where nothing is to be measured.

    Raises TargetError for a target that is gone, UsageError for a style that there is not.
    """
    stage = _stage(live, usual, setup, tokenizer, fixed=LENGTH in overrides)
    if stage is None:
        return usual
    target = live.opened.target
    heard = None if setup.fresh else audition.kept(target, stage)
    kept = heard is not None
    heard_in: tuple[Plan, ...] = ()
    if heard is None:
        ids: Iterator[int] = itertools.count()
        heard, ended = audition.hold(
            live, stage, ids, lambda plans: runfolder.write_plans(live.folder, plans)
        )
        if ended is not None:
            if ended.kind == "target-lost":
                raise TargetError(ended.detail)
            return None
        heard_in = runfolder.read_plans(live.folder)
        audition.keep(target, stage, heard)
    chosen = audition.best(heard)
    return replace(
        _long_enough(usual, setup, stage, chosen, heard_in, fixed=LENGTH in overrides),
        notes=(*usual.notes, audition.sentence(heard, kept=kept)),
        echoes=heard,
    )


def _stage(
    live: Session, usual: Made, setup: Setup, tokenizer: Any, *, fixed: bool
) -> audition.Stage | None:
    """What is to be measured; None for nothing: no choice, no wish, or too small a budget."""
    most = audition.most(setup.caps.requests)
    if setup.style is None or setup.engine is not None:
        return None
    listed = styles.lists(tokenizer, setup.words)
    if usual.first.style == "phrase":  # too few whole tokens for this run
        listed.pop("rare-token", None)
    elif usual.first.words == listed.get("phrase"):  # they are all whole tokens
        del listed["phrase"]
    if setup.style != "auto":
        listed = {style: words for style, words in listed.items() if style == setup.style}
        if not listed:
            raise UsageError(
                f"--style {setup.style}: there are not enough such words for this run; name the "
                "target's --tokenizer, or use another style"
            )
    length = max(each.load.passphrase_words for each in usual.scenarios)
    stage = audition.Stage(
        words=listed,
        lengths=audition.lengths(listed, length, fixed=fixed),
        seed=setup.seed,
        continues=live.opened.target.api == "completions",
        most=most,
        lanes=min(audition.COMPANY, max(each.load.lanes for each in usual.scenarios)),
        tenants=tuple(each.name for each in live.opened.target.tenants),
    )
    return stage if stage.cells else None


def _long_enough(
    usual: Made,
    setup: Setup,
    stage: audition.Stage,
    chosen: Echo,
    heard_in: tuple[Plan, ...],
    *,
    fixed: bool,
) -> Made:
    """The run with words of the chosen style, of as many as its entropy asks for: those of the
    shipped list are as the scenarios say.
    """
    words = stage.words[chosen.style]
    free = not fixed and chosen.style in ("made-up", "digits")
    for more in range(_LONGER + 1):
        scenarios = usual.scenarios
        if free:
            length = stage.lengths[chosen.style] + more
            scenarios = tuple(
                replace(each, load=replace(each.load, passphrase_words=length))
                for each in usual.scenarios
            )
        try:
            return _with(scenarios, setup, words, chosen.style, heard_in)
        except UsageError:
            if not free or more == _LONGER:
                raise
    raise AssertionError  # the loop returns or raises
