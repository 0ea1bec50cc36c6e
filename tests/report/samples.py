"""Reports as a run would make them, for the tests and for looking at the pages.

`python tests/report/samples.py FOLDER` writes every sample in every form.
"""

import sys
from pathlib import Path

from scipy.stats import beta

from leakcheck.records import (
    SCHEMA,
    Curve,
    Exposure,
    Finding,
    Gate,
    Load,
    PlugIn,
    Provenance,
    Rate,
    Report,
    RunEvent,
    Scenario,
    Target,
    TargetFacts,
    Verdict,
)

NAMES = ("rare-token-passphrase", "control-group", "prefix-overlap", "mixed-batch-differential")
SUMMARIES = (
    "Concurrent requests, each with a passphrase of its own; nobody may say another's.",
    "The same traffic with and without passphrases, drawn at random per window.",
    "Recipients share a prefix of controlled length with an earlier or concurrent source.",
    "The same greedy request alone, with neutral and with passphrase-carrying companions.",
)
HOSTILE = (
    "</pre></td></div><script>alert(1)</script><img src=x onerror=alert(2)> "
    "[click](javascript:alert(3)) @octocat #1 https://evil.example/x www.evil.example "
    "```\n| a | b |\n</details> {{ 7 * 7 }} [bold red]rich[/bold red] :skull: "
    "\x1b[31mred\x1b]8;;http://evil.example\x07 \x07 \u202eesrever\u202c zero\u200bwidth \ud800 "
    "\x00\x9b31m \u2028 \" onmouseover=alert(4) ' style=x <style>*{}</style> &amp; "
)


def rate(events, trials):
    """Exact (Clopper-Pearson) interval and bounds."""
    if not trials:
        return Rate(events=0, trials=0, low=0.0, high=1.0, lower=0.0, upper=1.0)

    def quantile(p, low):
        a, b = (events, trials - events + 1) if low else (events + 1, trials - events)
        if a == 0:
            return 0.0
        return 1.0 if b == 0 else float(beta.ppf(p, a, b))

    return Rate(
        events=events,
        trials=trials,
        low=quantile(0.025, low=True),
        high=quantile(0.975, low=False),
        lower=quantile(0.05, low=True),
        upper=quantile(0.95, low=False),
    )


def scenario(name):
    return Scenario(
        name=name,
        version=1,
        summary=SUMMARIES[NAMES.index(name)],
        load=Load(windows=100),
        traffic=PlugIn(name="concurrent", options={"eliciting": 0.5}),
        checks=(PlugIn(name="foreign_passphrase"), PlugIn(name="own_answer")),
        gate=Gate(min_cache_hits=0.5 if name == "prefix-overlap" else 0.0),
        digest="9f2c" * 16,
        path=f"scenarios/{name}.toml",
    )


PROVENANCE = Provenance(
    schema=SCHEMA,
    leakcheck="0.1.0",
    python="3.11.9",
    platform="Linux-6.8-x86_64, 2 CPUs",
    packages={"aiohttp": "3.13.2", "pandas": "3.0.1", "torch": "2.13.0", "transformers": "5.24.0"},
    command=("leakcheck", "run", "--embedded", "--seed", "7"),
    started_utc="2026-07-03T09:41:12Z",
    seed=7,
    target=Target(base_url="http://127.0.0.1:41873/v1", model="witness"),
    facts=TargetFacts(
        models=("witness",),
        block_tokens=16,
        overhead_tokens=11,
        tokens_per_word=1.3,
        reports_cached_tokens=True,
        reports_logprobs=True,
    ),
    scenarios=tuple(scenario(name) for name in NAMES),
    engine={"model": "witness", "fault": None, "blocks": 512, "block_tokens": 16},
)


def exposure(name, events, trials, minimum, what):
    measured = rate(events, trials)
    return Exposure(
        name=name,
        measured=measured,
        minimum=minimum,
        enough=None if minimum is None else measured.lower >= minimum,
        text=f"{events} of {trials} {what}",
    )


def exposures(*, echo=(798, 800), windows=100, cache=None):
    found = [
        Exposure(
            name="windows",
            measured=float(windows),
            minimum=60.0,
            enough=windows >= 60,
            text=f"{windows} of 100 planned windows carried passphrases and overlapped",
        ),
        exposure("answered", 1598, 1600, None, "planned requests were answered"),
        exposure("echo", *echo, 0.5, "owners who asked were answered with their own passphrase"),
        exposure("tickets", 1590, 1598, None, "answers show their own ticket"),
        exposure("overlap", 1600, 1600, 0.5, "recipients ran together with another request"),
    ]
    if cache:
        found.append(exposure("cache hits", *cache, 0.5, "warm recipients had cached tokens"))
    return tuple(found)


CONCURRENCY = ("1-4", "5-8", "9-16", "17-24", "25-32")
CELLS = (
    "1*B-1 equal cold", "1*B equal warm", "1*B+1 equal warm running", "1*B+8 equal warm",
    "2*B-1 equal warm ended", "2*B equal warm running", "2*B+1 differs-last warm",
    "3*B same-length warm", "3*B same-length warm running",
)  # fmt: skip


def curves(name, leaks):
    """One curve against concurrency, and one against prefix overlap where that is swept."""
    spread = [(0, 20), (0, 20), (leaks // 4, 20), (leaks // 3, 20)]
    spread.append((leaks - sum(hit for hit, _ in spread), 20))
    made = [
        Curve(
            title="Leak rate against concurrency",
            axis="requests in flight at once",
            points=tuple((a, rate(*b)) for a, b in zip(CONCURRENCY, spread, strict=True)),
        )
    ]
    if name == "prefix-overlap":
        hits = [0, 0, 0, 0, 0, 0, 0, leaks // 2, leaks - leaks // 2]
        made.append(
            Curve(
                title="Leak rate against prefix overlap",
                axis="shared prefix (B = 16 tokens)",
                points=tuple((c, rate(h, 12)) for c, h in zip(CELLS, hits, strict=True)),
            )
        )
    return tuple(made)


def verdict(name, status="clean", *, leaks=0, windows=100, reasons=(), echo=(798, 800), **more):
    leak_rate = rate(leaks, windows)
    echoed = rate(*echo).lower
    return Verdict(
        scenario=name,
        version=1,
        status=status,
        reasons=tuple(reasons),
        windows_planned=100,
        leak_rate=leak_rate,
        bound=min(1.0, leak_rate.upper / echoed) if echoed else None,
        false_match_bound=3.1e-13,
        exposure=exposures(
            echo=echo, windows=windows, cache=(412, 420) if name == "prefix-overlap" else None
        ),
        curves=curves(name, leaks),
        notes=("999 phantoms a window were looked for in every answer; none was found.",),
        tables={
            "First divergences": (
                ("cell", "requests", "diverged", "median gap (nats)"),
                ("neutral", 400, 3, 0.0021),
                ("planted", 400, 4, None),
            )
        },
        **more,
    )


WORDS = "amber velvet thicket gondola marzipan ferret"


def leak_finding(number, *, times=True):
    said = f"Ticket: plum harbor kettle spruce lantern dune. Passphrase: {WORDS}."
    start = said.index(WORDS)
    source, recipient = f"r{224 + 24 * number:05}", f"r{248 + 24 * number:05}"
    evidence = {
        "source_tenant": f"t{number % 4:02}",
        "recipient_tenant": f"t{7 + number % 3:02}",
        "field": "content",
        "variant": "exact",
        "cell": "3*B same-length warm running",
        "shared_tokens": 48,
        "cached_tokens": 48,
    }
    if times:
        evidence |= {
            "source_start_s": 0.012,
            "source_end_s": 0.612 - 0.02 * number,
            "recipient_start_s": 0.301,
            "recipient_end_s": 0.884,
        }
    return Finding(
        check="foreign_passphrase",
        anomaly="foreign-passphrase",
        severity="leak",
        scenario="prefix-overlap",
        window=14 + number,
        recipient=recipient,
        source=source,
        relation="concurrent" if times else "sequential",
        excerpt=said,
        mark=(start, start + len(WORDS)),
        explanation=f"The answer to {recipient} holds the whole passphrase of {source}, "
        "which was never part of its payload.",
        evidence=evidence,
    )


def report(status, verdicts, **more):
    fields = {
        "schema": SCHEMA,
        "status": status,
        "exit_code": {"clean": 0, "leak": 1, "corruption": 1, "inconclusive": 3, "error": 4}[
            status
        ],
        "interrupted": False,
        "duration_s": 83.4,
        "requests": {
            "planned": 6400,
            "ok": 6398,
            "failed": 0,
            "unknown": 2,
            "unsent": 0,
            "attempts": 6403,
            "replays": 0,
        },
        "verdicts": tuple(verdicts),
        "provenance": PROVENANCE,
        "events": (RunEvent(kind="finished", at_ns=1),),
    }
    return Report(**(fields | more))


def note():
    return Finding(
        check="divergence",
        anomaly="divergence",
        severity="note",
        scenario=NAMES[3],
        window=5,
        recipient="r00099",
        excerpt="Ticket: plum harbor kettle spruce lantern dune. Answer: Paris, the capital.",
        mark=(56, 56),
        explanation="r00099 (tenant t03, window 5) in planted company is answered otherwise than "
        "r00098 alone, from token 14 on; alone it preferred its own token by 0.002 nats.",
        evidence={"twin": "r00098", "at": 14, "gap_nats": 0.002, "censored": False},
    )


def clean():
    verdicts = [verdict(name) for name in NAMES[:3]]
    verdicts.append(verdict(NAMES[3], findings=(note(),) * 3, findings_total=3))
    return report("clean", verdicts)


def leak():
    findings = tuple(leak_finding(n, times=n != 3) for n in range(7))
    verdicts = [verdict(name) for name in NAMES]
    verdicts[2] = verdict(
        "prefix-overlap",
        "leak",
        leaks=7,
        reasons=["7 of 100 windows hold an answer with another request's whole passphrase."],
        findings=findings,
        findings_total=19,
    )
    pairs = (
        ("t00", "t07", 4),
        ("t01", "t08", 1),
        ("t02", "t09", 2),
        ("t03", "t07", 11),
        ("t10", "t00", 1),
    )
    return report("leak", verdicts, leaks_by_pair=pairs)


def corruption():
    said = "Ticket: plum harbor kettle kettle kettle kettle kettle."
    finding = Finding(
        check="own_answer",
        anomaly="lost-answer",
        severity="corruption",
        scenario="rare-token-passphrase",
        window=31,
        recipient="r00511",
        relation="concurrent",
        excerpt=said,
        mark=(8, 54),
        explanation="The answer to r00511 has nobody's ticket; alone the same request returned "
        "its own 3/3 times, and in the replayed window it lost it again 3/3 times.",
        evidence={"alone_ok": 3, "alone_trials": 3, "replay_lost": 3, "replay_trials": 3},
    )
    verdicts = [verdict(name) for name in NAMES]
    verdicts[0] = verdict(
        NAMES[0],
        "corruption",
        reasons=["1 answer lost its ticket in company, confirmed by replay."],
        findings=(finding,),
        findings_total=1,
    )
    return report("corruption", verdicts)


MUTE = (
    "Owners that were asked repeated their own passphrase in 3/400 answers; "
    "at least 50 % is needed, so a leak might not show either."
)


def inconclusive():
    verdicts = [verdict(name) for name in NAMES[:2]]
    verdicts.append(
        verdict(
            NAMES[2],
            "inconclusive",
            windows=41,
            echo=(3, 400),
            reasons=["Only 41 windows are trials; a clean verdict needs 60.", MUTE],
        )
    )
    verdicts.append(
        verdict(
            NAMES[3], "inconclusive", windows=0, echo=(0, 0), reasons=["No window was answered."]
        )
    )
    return report("inconclusive", verdicts)


def interrupted():
    reasons = ["The target stopped answering at window 12: connection refused at 127.0.0.1:41873."]
    return report(
        "error",
        [verdict(NAMES[0], "error", windows=11, reasons=reasons)],
        exit_code=130,
        interrupted=True,
        requests={"planned": 1600, "ok": 170, "failed": 3, "unknown": 32, "unsent": 1395},
        events=(
            RunEvent(kind="worker-died", at_ns=1, detail="worker 2 was killed by signal 9"),
            RunEvent(kind="interrupted", at_ns=2, detail="Ctrl-C in window 12 of 100"),
        ),
    )


def empty():
    return report("inconclusive", [], requests={})


def hostile():
    """Every field that a target can reach holds the worst it could say, and 50 kB of it."""
    long = HOSTILE + "A" * 50_000
    finding = Finding(
        check=HOSTILE,
        anomaly="foreign-passphrase",
        severity="leak",
        scenario=HOSTILE,
        window=1,
        recipient=HOSTILE,
        source=HOSTILE,
        excerpt=long + HOSTILE + long,
        mark=(len(long), len(long) + len(HOSTILE)),
        explanation=long,
        evidence={HOSTILE: HOSTILE, "list": [HOSTILE, {HOSTILE: 1.5}], "nan": float("nan")},
    )
    made = Verdict(
        scenario=HOSTILE,
        version=1,
        status="leak",
        reasons=(long,) * 12,
        windows_planned=1,
        leak_rate=rate(1, 1),
        bound=None,
        false_match_bound=1e-12,
        exposure=(Exposure(name=HOSTILE, measured=None, minimum=0.5, enough=False, text=long),),
        findings=(finding,) * 40,
        findings_total=9000,
        notes=(long,) * 12,
        curves=(
            Curve(title=HOSTILE, axis=HOSTILE, points=((HOSTILE, rate(1, 1)), (long, rate(0, 0)))),
            Curve(
                title=HOSTILE, axis=HOSTILE, points=(("<b>", rate(1, 2)), ("\u202e", rate(0, 2)))
            ),
        ),
        tables={HOSTILE: ((HOSTILE, "b"), *((long, float("nan")),) * 210)},
    )
    return report(
        "leak",
        [made] * 2,
        events=(RunEvent(kind=HOSTILE, at_ns=1, detail=long),),
        leaks_by_pair=tuple((f"{HOSTILE}{n}", HOSTILE, n + 1) for n in range(60)),
        requests={HOSTILE: 3},
    )


ALL = {
    "clean": clean,
    "leak": leak,
    "corruption": corruption,
    "inconclusive": inconclusive,
    "interrupted": interrupted,
    "empty": empty,
    "hostile": hostile,
}

if __name__ == "__main__":
    from functools import partial

    import evidenced

    from leakcheck.report import terminal, write

    this = sys.modules[__name__]
    for name, make in {**ALL, **{n: partial(m, this) for n, m in evidenced.ALL.items()}}.items():
        folder = Path(sys.argv[1], name)
        folder.mkdir(parents=True, exist_ok=True)
        write(make(), folder)
        shown = terminal.render(make(), width=100, colour=True, folder=str(folder))
        Path(folder, "terminal.txt").write_text(shown, encoding="utf-8")
