"""Reports whose verdicts carry evidence: one of each kind that the two sentences must tell apart.

Each function takes the module `samples`, whose makers it uses.
"""

from dataclasses import replace

from leakcheck.records import Evidence, RunEvent, TierEvidence

SCENARIOS = (
    "abort-storm", "cache-pressure", "concurrency-sweep", "control-group", "duplicate-ids",
    "identity-twins", "mixed-batch-differential", "parameter-twins", "prefix-overlap",
    "ragged-batch", "rare-token-passphrase", "sequential-carry-over",
)  # fmt: skip


def tiers(**hits):
    """All four tiers; `hits` are (planted hits, e-value) of those that saw something."""
    weights = {"encoded": 0.35, "fragment": 0.35, "alternatives": 0.15, "topic": 0.15}
    return tuple(
        TierEvidence(
            name=name,
            weight=weight,
            windows=100,
            sources=800,
            planted_hits=hits.get(name, (0, 1.0))[0],
            phantoms=79_200,
            phantom_hits=2 if name in hits else 0,
            e_value=hits.get(name, (0, 0.97))[1],
        )
        for name, weight in weights.items()
    )


def evidence(*, e_value=0.97, settled=None, certificate=0.0, sensitivity=0.69, seen=None, **more):
    fields = {"alpha": 0.01, "detect": 0.01, "tiers": tiers(**(seen or {}))} | more
    return Evidence(
        e_value=e_value,
        sensitivity=sensitivity,
        certificate=certificate,
        settled=settled,
        **fields,
    )


def finding(samples, severity, anomaly, **more):
    base = replace(samples.leak_finding(0), severity=severity, anomaly=anomaly)
    return replace(base, **more)


def early_leak(samples):
    """A whole passphrase in the third window; the others are certified."""
    shown = replace(samples.leak_finding(0), window=2)
    leaky = samples.verdict(
        samples.NAMES[2],
        "leak",
        leaks=1,
        windows=3,
        reasons=["1 answer shows somebody else's passphrase or ticket, in 1 of 3 windows"],
        findings=(shown,),
        findings_total=1,
        evidence=evidence(settled="leak"),
    )
    return samples.report("leak", [*certified(samples).verdicts[:2], budget(leaky)])


def fuzzy_leak(samples):
    """Nobody's whole passphrase; encoded ones and fragments, far more often than phantoms."""
    said = "Secret words, backwards: terref napizram alodnog tekciht tevlev rebma."
    mark = (26, 69)
    shown = finding(
        samples,
        "leak",
        "altered-passphrase",
        excerpt=said,
        mark=mark,
        explanation="The answer to r00248 holds the passphrase of r00224 spelled backwards.",
        evidence={"tier": "encoded", "form": "reversed", "phantoms": 99, "phantom_hits": 0},
    )
    found = tuple(replace(shown, window=3 + 2 * n) for n in range(4))
    leaky = samples.verdict(
        samples.NAMES[2],
        "leak",
        leaks=4,
        windows=40,
        reasons=["All evidence together reaches 4211 (100 needed): 9 of 800 candidates showed."],
        findings=found,
        findings_total=9,
        evidence=evidence(
            e_value=4211.0,
            settled="evidence",
            seen={"encoded": (9, 11_800.0), "fragment": (3, 210.0)},
        ),
    )
    made = samples.report("leak", [certified(samples).verdicts[0], budget(leaky)])
    return replace(made, e_value=2106.0)


def topic_leak(samples):
    shown = finding(samples, "leak", "foreign-topic", excerpt="It is about beekeeping.", mark=None)
    known = evidence(e_value=130.0, settled="evidence", seen={"topic": (31, 870.0)})
    leaky = samples.verdict(samples.NAMES[0], "leak", leaks=1, findings=(shown,), evidence=known)
    return replace(samples.report("leak", [budget(leaky)]), e_value=130.0)


def cache_leak(samples):
    shown = finding(samples, "leak", "foreign-cache-hit", excerpt="Dear Dr Falk, the result of")
    leaky = samples.verdict(
        samples.NAMES[2], "leak", leaks=3, findings=(shown,), evidence=evidence()
    )
    return samples.report("leak", [leaky])


def ticket_leak(samples):
    shown = finding(samples, "leak", "foreign-answer")
    leaky = samples.verdict(
        samples.NAMES[1], "leak", leaks=1, findings=(shown,), evidence=evidence()
    )
    return samples.report("leak", [leaky])


CORRUPTIONS = {
    "lost-answer": {
        "kept_alone": 3,
        "replayed_alone": 3,
        "lost_hot": 0,
        "replayed_hot": 24,
        "lost_in_window": 6,
        "replayed_in_window": 6,
    },
    "changed-answer": {"windows_up": 18, "windows_down": 0, "windows": 24, "p": 3.8e-6},
    "foreign-parameters": {"aspect": "stop", "windows_up": 11, "windows": 36, "p": 4.9e-4},
    "diverted-answer": {
        "parted_again": 10,
        "replayed": 10,
        "parted_in_other_company": 0,
        "replayed_in_other_company": 10,
    },
}


def corrupted(samples, anomaly):
    """Corruption of one kind."""
    shown = finding(
        samples,
        "corruption",
        anomaly,
        source=None,
        excerpt="Ticket: plum harbor kettle kettle kettle kettle kettle.",
        mark=(8, 54),
        explanation=f"r00511 (tenant t03, window 31) shows {anomaly}.",
        evidence=CORRUPTIONS[anomaly],
    )
    bad = samples.verdict(
        samples.NAMES[3],
        "corruption",
        reasons=[f"{anomaly} in 1 answer, confirmed."],
        findings=(shown,),
        findings_total=1,
        evidence=evidence(),
    )
    return samples.report("corruption", [*certified(samples).verdicts[:1], bad])


def budget(verdict, windows=450):
    return replace(verdict, windows_planned=windows)


def certified(samples, names=None):
    """Clean, and every scenario ended as soon as 1 % was excluded."""
    known = evidence(settled="certificate", certificate=20.06, sensitivity=0.69)
    verdicts = [
        replace(
            budget(samples.verdict(samples.NAMES[0], windows=433, evidence=known), 700),
            scenario=name,
        )
        for name in names or samples.NAMES
    ]
    return samples.report("clean", verdicts)


def twelve(samples):
    """As `make run` would show it: twelve scenarios."""
    return certified(samples, SCENARIOS)


def suspected(samples):
    """Clean, yet one scenario alone would have evidence."""
    known = evidence(e_value=180.0, certificate=21.0, seen={"fragment": (4, 500.0)})
    verdict = samples.verdict(samples.NAMES[0], windows=450, evidence=known)
    return samples.report("clean", [verdict])


def too_few(samples):
    """Inconclusive at the budget: the bound that was reached is not the one asked for."""
    known = evidence(certificate=1.32, sensitivity=0.69)
    verdict = samples.verdict(
        samples.NAMES[0],
        "inconclusive",
        windows=41,
        reasons=["41 windows exclude leaks in more than 7.2 % of windows; 1 % was asked for."],
        evidence=known,
    )
    return samples.report("inconclusive", [*certified(samples).verdicts[:2], verdict])


def mute(samples):
    """Inconclusive because nobody repeats anything."""
    known = evidence(certificate=1.0, sensitivity=None)
    verdict = samples.verdict(
        samples.NAMES[0], "inconclusive", echo=(0, 400), reasons=[samples.MUTE], evidence=known
    )
    return samples.report("inconclusive", [verdict])


def broken_experiment(samples):
    note = finding(samples, "note", "withheld-passphrase")
    verdict = samples.verdict(
        samples.NAMES[0], "inconclusive", findings=(note,), evidence=evidence()
    )
    return samples.report("inconclusive", [verdict])


def lost_capacity(samples):
    shown = finding(
        samples,
        "error",
        "lost-capacity",
        excerpt="no whole answer within 60 s",
        mark=None,
        evidence={"windows": 24, "served": 10, "end": 14, "weak_at_end": 14, "empty_at_end": 12},
        explanation="the target lost capacity: of the last 14 windows 12 were not answered at all",
    )
    verdict = samples.verdict(
        samples.NAMES[0], "error", windows=10, findings=(shown,), evidence=evidence()
    )
    return samples.report("error", [verdict])


WHY = "Cannot connect to host 127.0.0.1:41873: connection refused"


def dead_target(samples):
    """The target died in the first scenario: eleven others never began."""
    verdicts = []
    for number, name in enumerate(SCENARIOS):
        answered = 0 if number else 37
        reason = f"the target was lost after {answered} of {480 + number} requests were answered"
        made = samples.verdict(samples.NAMES[0], "error", windows=0, echo=(0, 0))
        short = samples.exposure("answered", answered, 480, 0.5, "planned requests were answered")
        made = replace(made, exposure=(made.exposure[0], short, *made.exposure[2:]))
        verdicts.append(replace(made, scenario=name, reasons=(f"{reason}: {WHY}",)))
    events = (RunEvent(kind="target-lost", at_ns=1, detail=WHY),)
    return samples.report("error", verdicts, events=events)


ALL = {
    "early-leak": early_leak,
    "fuzzy-leak": fuzzy_leak,
    "topic-leak": topic_leak,
    "cache-leak": cache_leak,
    "ticket-leak": ticket_leak,
    **{name: (lambda samples, name=name: corrupted(samples, name)) for name in CORRUPTIONS},
    "certified": certified,
    "twelve": twelve,
    "suspected": suspected,
    "too-few": too_few,
    "mute": mute,
    "broken-experiment": broken_experiment,
    "lost-capacity": lost_capacity,
    "dead-target": dead_target,
}
