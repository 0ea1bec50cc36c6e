"""The answer of `leakcheck doctor`: one screen for people, or the record as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import orjson

from leakcheck.records import Abilities, Diagnosis, Endpoint, Noise, Outlook, Part, TargetFacts
from leakcheck.report.counting import many
from leakcheck.report.untrusted import clipped, visible

PARTS: dict[Part, str] = {
    "survey": "its block size and template",
    "abilities": "what it can do",
    "audition": "which passphrases it repeats",
    "noise": "how far it repeats itself, and whether requests run in company",
}
"""Of an examination, in words."""
_NAMES = 15
_SCENARIO = 26
_LEAST_WIDTH = 60
_SHOWN = 6
_BELOW_BASE = frozenset({"chat/completions", "completions", "responses", "messages"})
_MINUTES_A_DAY, _MINUTES_AN_HOUR = 24 * 60, 60
_GRADES = {
    "D0": "bit-identical, also in company",
    "D1": "the same alone; in company small differences, as rounding by batch makes them",
    "D2": "it does not even repeat itself alone",
}


def as_json(found: Diagnosis) -> str:
    """The record, indented."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(found, option=option).decode()


def render(found: Diagnosis, *, width: int = 100) -> str:
    """One screen. What a target says of itself cannot steer the terminal."""
    width = max(width, _LEAST_WIDTH)
    able = found.abilities
    api = f"{able.api} API" if able.backend == "openai" else f"backend {able.backend}, {able.api}"
    lines = [visible(f"{able.base_url}, model {able.model}, {api}"), ""]
    lines += [*_filled("", visible(_short(found)), width), ""] if found.ended else []
    for name, text in _lines(found):
        lines += _filled(f"{name:<{_NAMES}}", visible(text), width)
    lines += ["", *_table(found.outlooks, width)]
    notes = dict.fromkeys((*found.facts.notes, *able.notes))
    if notes:
        lines.append("")
        for note in notes:
            lines += _filled("note: ", visible(note), width)
    if found.ended:
        lines += ["", *_filled("", visible(_short(found)), width)]
    took = f"{many(found.requests, 'request')} in {found.duration_s:.0f} s"
    lines += ["", f"This took {took}. Whether anything leaks only `leakcheck run` can tell."]
    return "\n".join(lines) + "\n"


def _short(found: Diagnosis) -> str:
    """Why the examination did not come to its end, and what it did not come to."""
    kind, detail = found.ended or ("", "")
    how = {
        "target-lost": "The target was lost while it was examined",
        "interrupted": "The examination was interrupted",
    }.get(kind, "The examination ended early")
    missing = "; ".join(PARTS[each] for each in found.unmeasured)
    return f"{how}: {detail}. Not or not wholly measured: {missing}."


def _filled(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    ) or [head]


def _lines(found: Diagnosis) -> Iterator[tuple[str, str]]:
    """Every line: its name and its text."""
    able, facts = found.abilities, found.facts
    yield "engine", f"{able.engine} (it says)" if able.engine else "it does not say what it is"
    yield from _endpoints(able)
    yield "models", _models(able)
    yield "context", _context(able)
    yield "streaming", _streaming(able)
    yield "log-probs", _logprobs(able, facts)
    yield "sampling", _sampling(able, facts)
    yield "tools, formats", _shapes(able)
    if able.backend == "openai" or able.token_ids is not None:
        yield "extensions", _extensions(able)
    yield "refuses", _refuses(able)
    yield "cached tokens", _cached(able, facts)
    yield "salts", _salts(able)
    yield "metrics", _metrics(able)
    yield "limits", _limits(able)
    yield "noise", "not measured" if found.noise is None else noise(found.noise)
    yield "echo", _echo(found)
    yield from _styles(facts)
    speed = found.requests_per_s
    if speed is not None:
        yield "speed", f"{speed:.2g} requests a second, eight at one time"


def _endpoints(able: Abilities) -> Iterator[tuple[str, str]]:
    if not able.endpoints:
        yield "endpoints", f"not looked for: the {able.backend} backend knows its own"
        return
    there = [_shown(each) for each in able.endpoints if each.there]
    yield "endpoints", ", ".join(there) or "none"
    missing = [_shown(each) for each in able.endpoints if each.there is False]
    if missing:
        yield "  not there", ", ".join(missing)
    silent = [
        f"{_shown(each)} ({each.status or 'no answer'})"
        for each in able.endpoints
        if each.there is None
    ]
    if silent:
        yield "  not known", ", ".join(silent)
    if able.apis:
        yield "  answer", f"{', '.join(able.apis)}: each a tiny request"


def _shown(endpoint: Endpoint) -> str:
    return endpoint.path if endpoint.path in _BELOW_BASE else f"/{endpoint.path}"


def _models(able: Abilities) -> str:
    if not able.models:
        return "not listed"
    shown = ", ".join(able.models[:_SHOWN])
    more = len(able.models) - _SHOWN
    return f"{len(able.models)}: {shown}" + (f" and {more} more" if more > 0 else "")


def _context(able: Abilities) -> str:
    if able.context_tokens is None:
        return "not told"
    return f"{able.context_tokens:,} tokens a request, as it says"


def _streaming(able: Abilities) -> str:
    if able.pieces is None:
        return "not known: the request for it was not answered"
    text = f"an answer came in {many(able.pieces, 'piece')}"
    text += {
        True: "; usage at its end",
        False: "; no usage in it",
        None: "",
    }[able.usage_in_streams]
    if able.reasoning:
        text += "; reasoning in a field of its own"
    return text + ("" if able.usage is not False else "; no usage in whole replies either")


def _logprobs(able: Abilities, facts: TargetFacts) -> str:
    if able.logprobs is None:
        return "not known"
    if "top_logprobs" in able.unsaid:
        return "this API has none"
    if not able.logprobs:
        return "of the chosen tokens alone, no alternatives" if facts.reports_logprobs else "none"
    return f"yes, with up to {many(able.logprobs, 'alternative')} where 5 are asked for"


def _sampling(able: Abilities, facts: TargetFacts) -> str:
    named = (
        ("temperature", facts.samples if able.temperature is None else able.temperature),
        ("seed", able.seed),
        ("stop strings", able.stop),
        ("several answers (n)", able.n),
    )
    fields = dict(zip((name for name, _ in named), ("", "seed", "stop", "n"), strict=True))
    said = tuple(each for each in named if fields[each[0]] not in able.unsaid)
    unsaid = [name for name, _ in named if fields[name] in able.unsaid]
    text = _sorted_out(said, "follows")
    return f"{text}; this API has no {', '.join(unsaid)}" if unsaid else text


def _sorted_out(named: tuple[tuple[str, bool | None], ...], verb: str) -> str:
    parts = []
    for value, how in ((True, verb), (False, "not"), (None, "not known")):
        names = [name for name, follows in named if follows is value]
        if names:
            parts.append(f"{how}: {', '.join(names)}")
    return "; ".join(parts)


def _shapes(able: Abilities) -> str:
    if able.api == "completions":
        return "not asked for: completions have none"
    none = [name for name in ("tools", "response_format") if name in able.unsaid]
    if len(none) > 1:
        return "this API has none"
    tools = {
        "called": "tools are called",
        "accepted": "tools are accepted, and this model did not call the one it had",
        "refused": "tools are refused",
        None: "tools not known",
    }[able.tools]
    form = {
        "followed": "response_format followed",
        "ignored": "response_format accepted, not followed",
        "refused": "response_format refused",
        None: "response_format not known",
    }[able.response_format]
    return tools if none else f"{tools}; {form}"


def _extensions(able: Abilities) -> str:
    named: tuple[tuple[str, bool | None], ...] = (("answers as token ids", able.token_ids),)
    if able.backend == "openai":
        named = (
            ("prompts of token ids", able.token_prompts),
            ("prompt_logprobs", able.prompt_logprobs),
            *named,
        )
    return _sorted_out(named, "takes")


def _refuses(able: Abilities) -> str:
    if not able.refuses:
        return "nothing that leakcheck sends"
    instead = " (max_completion_tokens in its place)" if "max_tokens" in able.refuses else ""
    return f"{', '.join(able.refuses)}: left out{instead}"


def _cached(able: Abilities, facts: TargetFacts) -> str:
    if not (facts.reports_cached_tokens or able.cached_tokens):
        return "not reported" if able.usage is not None else "not reported by what was answered"
    if facts.block_tokens is None:
        return "reported; they show no block size of eight tokens or more"
    return f"reported, in blocks of {facts.block_tokens} tokens"


def _salts(able: Abilities) -> str:
    if "cache_salt" in able.unsaid:
        return "this API has none"
    if "cache_salt" in able.refuses:
        return "cache_salt is refused"
    return {
        "apart": "kept apart: nothing cached under one cache_salt was found under another",
        "together": "ignored: what was cached under one cache_salt was found under another",
        None: "not known: whether cache_salt does anything does not show without cache hits",
    }[able.salts]


def _metrics(able: Abilities) -> str:
    page = any(each.path == "metrics" and each.there for each in able.endpoints)
    if able.metrics is not None:
        return f"{able.metrics} at /metrics says how many requests run"
    return "a page that does not say how many requests run" if page else "none found"


def _limits(able: Abilities) -> str:
    if not able.limits:
        return "none named in its headers"
    return "; ".join(f"{name}: {clipped(text, 60)}" for name, text in able.limits.items())


def noise(seen: Noise) -> str:
    """The grade and what it rests on."""
    what = "no grade: nothing differed, and without log-probabilities that is no proof of D0"
    if seen.grade is not None:
        what = f"{seen.grade} so far: {_GRADES[seen.grade]}"
    if seen.grade == "D1" and not seen.company_differ:
        what = f"{seen.grade} so far: the same tokens, with small differences of log-probabilities"
    alone = f"{seen.alone_differ} of {seen.alone_compared} answers differ alone"
    company = f"{seen.company_differ} of {seen.company_compared} in neutral company"
    drift = ""
    if seen.company_drift_nats is not None:
        drift = (
            f"; log-probabilities by up to {seen.alone_drift_nats or 0:.2g} nats alone, "
            f"{seen.company_drift_nats:.2g} in company"
        )
    return f"{what} ({alone}, {company}, in {many(seen.windows, 'window')}{drift})"


def _echo(found: Diagnosis) -> str:
    if found.echo is None or not found.echo.trials:
        tried = ": what follows was asked for a few at a time" * bool(found.facts.echoes)
        return f"in company not measured{tried}"
    rate = found.echo
    how = f", of style {found.facts.style}" if found.facts.style else ""
    return (
        f"{rate.events} of {rate.trials} owners in company repeated their passphrase{how} "
        f"(at least {100 * rate.lower:.0f} %)"
    )


def _styles(facts: TargetFacts) -> Iterator[tuple[str, str]]:
    """Each style, with all phrasings of it that were tried."""
    styles = dict.fromkeys(each.style for each in facts.echoes)
    for number, style in enumerate(styles):
        tried = [each for each in facts.echoes if each.style == style and each.asked]
        text = ", ".join(f"{each.phrasing} {each.both} of {each.asked}" for each in tried)
        if tried:
            yield (
                f"  {style}",
                f"{text} (passphrase and ticket, by phrasing)" * (not number) or text,
            )


# --- scenarios -----------------------------------------------------------------------------------


def _table(outlooks: tuple[Outlook, ...], width: int) -> list[str]:
    heads = f"{'scenario':<{_SCENARIO}}{'can be judged':<15}{'windows':>8}{'requests':>10}  time"
    lines = [heads]
    common = _common(outlooks)
    for each in outlooks:
        can = {True: "yes", False: "no", None: "perhaps"}[each.can]
        lines.append(
            f"{each.scenario:<{_SCENARIO}}{can:<15}{_number(each.windows):>8}"
            f"{_number(each.requests):>10}  {_time(each.minutes)}"
        )
        for text in (*each.reasons, *each.remarks):
            if text not in common:
                lines += _filled("    ", visible(text), width)
    for text in common:
        lines += _filled("all of them: ", visible(text), width)
    detect = {each.detect for each in outlooks}
    if len(detect) == 1:
        share = f"{100 * detect.pop():g} %"
        lines.append(
            f"Windows, requests and time to exclude leaks in {share} of windows, by what was "
            "measured here;"
        )
        lines.append("--detect 5% takes about a fifth.")
    return lines


def _common(outlooks: tuple[Outlook, ...]) -> list[str]:
    """What would be said of every scenario."""
    if not outlooks:
        return []
    said = [(*each.reasons, *each.remarks) for each in outlooks]
    return [text for text in said[0] if all(text in each for each in said)]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _time(minutes: float | None) -> str:
    if minutes is None:
        return "-"
    if minutes >= _MINUTES_A_DAY:
        return f"{minutes / _MINUTES_A_DAY:.1f} days"
    if minutes >= _MINUTES_AN_HOUR:
        return f"{minutes / _MINUTES_AN_HOUR:.1f} h"
    return f"{max(1, round(minutes))} min"
