"""What is known of a target, turned into what each scenario would give on it.

A scenario can be judged unless something that its verdict takes is known to be missing. What is
only weaker, and why, is a remark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakcheck import planning, scenario
from leakcheck.analyzer.exposure import PIECES
from leakcheck.passphrase import load_words
from leakcheck.records import (
    Abilities,
    Exposure,
    Noise,
    Outlook,
    Part,
    Rate,
    Request,
    Scenario,
    TargetFacts,
)
from leakcheck.report.diagnosis import PARTS

_PLANNED = 4
"""Windows of a scenario that are planned to see how long its prompts are."""
_MUTE = 10
"""Owners that were answered, and none with its own passphrase: the target does not repeat them."""
_PARAMETERS = {
    "everything": ("seed", "stop", "logit_bias"),
    "biases": ("logit_bias", "allowed_token_ids"),
}
"""What can be tested by what the check `contract` is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was found out: `echo` in the best way to ask; `cache_hits`, whether any prompt that was
    sent twice was reported as cached (None: none of these was answered); `exposures` of the little
    traffic that was measured; and what was not measured.
    """

    abilities: Abilities
    facts: TargetFacts
    noise: Noise | None
    echo: Rate | None
    cache_hits: bool | None
    exposures: tuple[Exposure, ...]
    seen: planning.Seen | None
    unmeasured: tuple[Part, ...] = ()


def outlooks(scenarios: Sequence[Scenario], known: Known) -> tuple[Outlook, ...]:
    """One for each scenario."""
    return tuple(_outlook(each, known) for each in scenarios)


def _outlook(of: Scenario, known: Known) -> Outlook:
    reasons, unsure = tuple(_reasons(of, known)), tuple(_open(of, known))
    need = _need(of, known)
    return Outlook(
        scenario=of.name,
        can=None if not reasons and unsure else not reasons,
        reasons=reasons or unsure,
        remarks=tuple(_remarks(of, known)),
        detect=of.gate.detect,
        windows=need.windows,
        requests=need.requests,
        minutes=need.minutes,
    )


def _need(of: Scenario, known: Known) -> planning.Need:
    """What it takes at the lower bound of the echo rate; where no number of windows is enough then,
    at the rate that was seen.
    """
    seen = known.seen
    need = planning.bill(of, planning.Terms(), seen=seen, facts=known.facts).needs[-1]
    if need.windows is None and seen is not None and seen.echo.value is not None:
        likely = replace(seen, echo=replace(seen.echo, lower=seen.echo.value))
        need = planning.bill(of, planning.Terms(), seen=likely, facts=known.facts).needs[-1]
    return need


def _reasons(of: Scenario, known: Known) -> Iterator[str]:
    """What its verdict takes and is known to be missing."""
    gate, facts = of.gate, known.facts
    surveyed = "survey" not in known.unmeasured and known.cache_hits is not None
    if known.echo is not None and known.echo.upper < gate.min_echo:
        yield f"owners repeat their own passphrase too seldom: {_counted(known.echo)}"
    elif known.echo is not None and not known.echo.events and known.echo.trials >= _MUTE:
        yield f"no owner repeats its own passphrase ({_counted(known.echo)}): no leak would show"
    if gate.min_cache_hits > 0 and surveyed and not facts.reports_cached_tokens:
        yield "it does not report cached tokens, so that no cache hit can be shown"
    elif gate.min_cache_hits > 0 and surveyed and not known.cache_hits:
        yield "it never reported a cache hit, not even for a prompt sent twice"
    if gate.min_overlap > 0:
        for name in ("running", "generating"):
            measure = next((each for each in known.exposures if each.name == name), None)
            if measure is not None and measure.enough is False:
                yield "it seems to serve one request at a time, so that nothing runs in company"
                break
    parameters = _parameters(of, known)
    if parameters and not any(parameters.values()):
        yield f"it takes and follows none of {', '.join(parameters)}: nothing to test"
    yield from _too_long(of, known)


def _open(of: Scenario, known: Known) -> Iterator[str]:
    """What only a run can tell, or was not measured."""
    if of.gate.min_cache_hits > 0 and known.cache_hits is None:
        yield "whether a prompt that is sent twice is found in its cache was not measured"
    for part in known.unmeasured:
        if _matters(part, of):
            yield f"not measured: {PARTS[part]}"
    echo, least = known.echo, of.gate.min_echo
    if echo is None or not echo.trials:
        if "audition" not in known.unmeasured:
            yield "how often owners repeat their passphrase was not measured"
    elif echo.lower < least <= echo.upper:
        yield (
            f"owners may repeat their own passphrase too seldom: {_counted(echo)}, so at least "
            f"{100 * echo.lower:.0f} %, and a run has to show {100 * least:g} %"
        )


def _matters(part: Part, of: Scenario) -> bool:
    return part != "noise" or of.gate.min_overlap > 0 or _checks(of, "divergence")


def _remarks(of: Scenario, known: Known) -> Iterator[str]:
    """What makes its verdict weaker, or means something else on this target."""
    abilities, shape = known.abilities, of.traffic.name
    if shape == "abort_storm" and abilities.pieces is None:
        yield "not measured: whether answers come in pieces, so that clients hang up within them"
    elif shape == "abort_storm" and (abilities.pieces or 0) < PIECES:
        yield "answers do not come in pieces: clients hang up by the clock only"
    parameters = _parameters(of, known)
    missing = [name for name, follows in parameters.items() if not follows]
    if 0 < len(missing) < len(parameters):
        yield f"not tested, as it does not take or follow them even alone: {', '.join(missing)}"
    if _checks(of, "divergence"):
        if not known.facts.reports_logprobs:
            yield "no log-probabilities: texts are compared, which shows less"
        if known.noise is not None and known.noise.grade == "D2":
            yield "it does not repeat itself even alone: most differences will be noise"
    if shape == "identity_twins":
        yield from _of_twins(abilities)


def _of_twins(abilities: Abilities) -> Iterator[str]:
    if abilities.salts == "together":
        yield "prefixes are shared whatever the cache_salt: noted, and no leak by itself"
    elif abilities.salts is None:
        yield "whether it keeps cache salts apart is not known"
    if {"metadata", "user"} & set(abilities.refuses):
        yield "it refuses conversation ids: that part is traffic like any other"


def _parameters(of: Scenario, known: Known) -> dict[str, bool]:
    """What the check `contract` of this scenario would test, and whether it can; what is not known
    counts as so. Empty without that check.
    """
    check = next((each for each in of.checks if each.name == "contract"), None)
    if check is None:
        return {}
    abilities = known.abilities
    ignored = [name for name in ("seed", "stop") if getattr(abilities, name) is False]
    lost = {*abilities.refuses, *abilities.unsaid, *ignored}
    about = check.options.get("about", "everything")
    return {name: name not in lost for name in _PARAMETERS.get(about, ())}


def _too_long(of: Scenario, known: Known) -> Iterator[str]:
    """Prompts that the target has no room for."""
    room = known.abilities.context_tokens
    if room is None:
        return
    ids, words = itertools.count(), load_words()
    requests = [
        request
        for index in range(_PLANNED)
        for request in scenario.plan_window(
            of, index, seed=0, facts=known.facts, words=words, style="phrase", ids=ids
        )
    ]
    longest = max((_tokens(request, known.facts) for request in requests), default=0)
    if longest > room:
        yield f"its longest requests take about {longest} tokens, and the target has {room}"


def _tokens(request: Request, facts: TargetFacts) -> int:
    words = sum(len(message.content.split()) for message in request.messages)
    phrases = [each for each in (request.ticket, request.passphrase) if each is not None]
    listed = sum(len(each.words) for each in phrases)
    prompt = facts.tokens_per_word * (words - listed) + facts.tokens_per_phrase_word * listed
    return round(facts.overhead_tokens + prompt) + request.sampling.max_tokens


def _checks(of: Scenario, name: str) -> bool:
    return any(check.name == name for check in of.checks)


def _counted(rate: Rate) -> str:
    return f"{rate.events} of {rate.trials} answers"
