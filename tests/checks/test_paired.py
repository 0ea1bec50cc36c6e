"""The same request must not lose its ticket under one of two conditions only."""

import random
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import Reply, history, obedient, plan, played
from shorthand import history as line

from leakcheck import evidence, scenario
from leakcheck.checks import own_answer, paired
from leakcheck.checks.paired import ALPHA, LEAST_DIFFERENCE, Pair
from leakcheck.errors import UsageError

WINDOWS = 16


def pair(window, reference, treated):
    return Pair(
        window=window,
        reference=f"r{window}",
        treated=f"t{window}",
        reference_kept=reference,
        treated_kept=treated,
    )


def losing(cell, share=1.0, seed=0):
    """A model whose recipients lose their ticket in one cell."""
    draws = random.Random(seed)

    def model(request, company):
        if request.cell == cell and request.role == "recipient" and draws.random() < share:
            return Reply(text="Something else altogether.")
        return obedient(request, company)

    return model


def checked(model, windows=WINDOWS, **options):
    h = history("mixed-batch-differential", windows, model, load__requests=6)
    return paired.check(h, **options)


def test_a_ticket_that_is_lost_in_one_condition_only_is_corruption():
    (found,) = checked(losing("planted")).findings
    assert (found.anomaly, found.severity) == ("changed-answer", "corruption")
    assert found.evidence["windows_up"] == found.evidence["windows"] == WINDOWS
    assert found.evidence["p"] == evidence.sign_one_sided(WINDOWS, 0)


def test_the_finding_names_both_requests_of_a_pair():
    h = history("mixed-batch-differential", WINDOWS, losing("planted"), load__requests=6)
    (found,) = paired.check(h).findings
    recipient, reference = h.by_id(found.recipient), h.by_id(found.evidence["reference"])
    assert (recipient.cell, reference.cell) == ("planted", "neutral")
    assert recipient.messages == reference.messages
    assert found.excerpt == "Something else altogether."
    assert reference.id in found.explanation


def test_the_other_way_round_is_no_finding():
    assert checked(losing("neutral")).findings == ()


def test_neutral_company_that_does_the_same_clears_planted_company():
    def model(request, company):
        lost = company and request.role == "recipient"
        return Reply(text="Something else.") if lost else obedient(request, company)

    assert checked(model, reference="neutral", treated="planted").findings == ()


def test_alone_against_company_is_never_more_than_a_note():
    (found,) = checked(losing("neutral"), reference="alone", treated="neutral").findings
    assert found.severity == "note"
    assert found.explanation.endswith(
        "answers lose tickets in company, which may be numerics or unlike replicas."
    )
    assert (found.evidence["windows_up"], found.evidence["equal_company"]) == (WINDOWS, False)


def test_comparisons_that_may_accuse_share_the_level():
    twice = checked(losing("planted"), reference=["neutral"] * 2, treated=["planted"] * 2)
    assert [f.evidence["alpha"] for f in twice.findings] == [ALPHA / 2] * 2
    assert len(twice.tables[paired.TITLE]) == 3
    shipped = checked(
        losing("planted"), reference=["neutral", "alone"], treated=["planted", "planted"]
    )
    assert [(f.severity, f.evidence["alpha"]) for f in shipped.findings] == [
        ("corruption", ALPHA),
        ("note", ALPHA),
    ]


# of every comparison of a shipped scenario: whether it is one of content
SHIPPED = {
    "sequential-carry-over": {("cold", "warm"): True},
    "mixed-batch-differential": {("neutral", "planted"): True, ("alone", "neutral"): False},
    "ragged-batch": {("alone", "ragged"): False},
    "cache-pressure": {("before", "after"): True},
    "parameter-twins": {("plain", "mixed"): True},
}


def shipped_comparisons(name):
    path = {each.stem: each for each in scenario.shipped_files()}[name]
    options = tomllib.loads(path.read_text())["checks"].get("paired")
    if options is None:
        return options, []
    lists = [
        [options[side]] if isinstance(options[side], str) else options[side]
        for side in ("reference", "treated")
    ]
    return options, list(zip(*lists, strict=True))


@pytest.mark.parametrize("name", [each.stem for each in scenario.shipped_files()])
def test_the_plan_says_which_comparisons_may_accuse(name):
    options, names = shipped_comparisons(name)
    assert set(names) == set(SHIPPED.get(name, {}))
    if options is None:
        return
    treated = {each for _, each in names}

    def model(request, company):
        lost = request.cell in treated and request.role == "recipient"
        return Reply(text="Something else.") if lost else obedient(request, company)

    found = paired.check(history(name, WINDOWS, model), **options).findings
    for f in found:
        cells = f.evidence["reference_cell"], f.evidence["treated_cell"]
        assert f.evidence["equal_company"] == SHIPPED[name][cells]
    assert found


def in_company(change):
    """A server whose company is sometimes answered so; alone never."""
    return lambda request, company: (
        change(request) if company and request.role == "recipient" else obedient(request, company)
    )


@pytest.mark.parametrize("name", ["mixed-batch-differential", "ragged-batch", "parameter-twins"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_an_overflow_replica_that_loses_tickets_is_not_accused(name, share):
    """It serves requests in company alone, and loses as many tickets of one content as of another.
    Ten runs of each at 0.001: one of these sixty is accused with a chance of 6 % at most.
    """
    options, _ = shipped_comparisons(name)
    windows = {"ragged-batch": 48, "mixed-batch-differential": 60, "parameter-twins": 36}[name]
    of = plan(name, windows, load__phantoms=0, load__requests=8)
    for seed in range(10):
        draws = random.Random(f"{name} {share} {seed}")
        model = in_company(
            lambda request, draws=draws: (
                Reply(text="So it goes on.") if draws.random() < share else obedient(request, ())
            )
        )
        found = paired.check(played(of, model), **options).findings
        assert [f for f in found if f.severity != "note"] == []


def test_conditions_without_a_partner_are_refused():
    with pytest.raises(UsageError, match="reference has 2 names and treated 1"):
        checked(obedient, reference=["neutral", "alone"], treated="planted")


def test_a_few_windows_are_a_note():
    found = checked(losing("planted", share=0.2)).findings
    assert [f.severity for f in found] == ["note"]
    assert found[0].explanation.endswith("too little to tell it from noise.")


def test_nothing_that_can_be_compared_is_said():
    result = checked(obedient, reference="cold", treated="warm")
    assert result.notes == ("no request was answered both 'cold' and 'warm': nothing was compared",)


TWINS = {"b": {"twin": "a", "cell": "after"}, "a": {"cell": "before"}}


def compared(text):
    a = line("a.").by_id("a")
    changes = {"a": TWINS["a"], "b": TWINS["b"] | {"ticket": a.ticket, "passphrase": a.passphrase}}
    h = line(text, changes=changes)
    return paired.pairs(h, own_answer.ticket_states(h), "before", "after")


def test_a_pair_is_two_answers_of_one_payload_in_one_window():
    (found,) = compared("a> a=a / b> b=_")
    assert (found.reference, found.treated) == ("a", "b")
    assert (found.reference_kept, found.treated_kept) == (True, False)


@pytest.mark.parametrize(
    "text", ["a> a=a / b> b!", "a> a- / b> b=a", "a> a=a / b.", "a> a=a | b> b=a"]
)
def test_what_was_not_answered_twice_in_one_window_is_no_pair(text):
    assert compared(text) == []


def test_a_foreign_ticket_is_a_leak_and_not_compared():
    assert compared("c> c=c a> a=a / b> b=c") == []


def test_windows_with_both_directions_cancel():
    signs = paired.count([pair(0, True, False), pair(0, False, True), pair(1, True, False)])
    assert (signs.windows, signs.ups, signs.downs) == (2, 1, 0)


def test_several_pairs_of_a_window_count_once():
    signs = paired.count([pair(0, True, False), pair(0, True, False), pair(0, True, True)])
    assert (signs.windows, signs.ups, signs.downs) == (1, 1, 0)


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_sign_test_is_a_probability_that_falls_with_the_ups(ups, downs):
    p = evidence.sign_one_sided(ups, downs)
    assert 0 < p <= 1
    assert evidence.sign_one_sided(ups + 1, downs) < p or p > 1 - 1e-12
    if ups == 0:
        assert p == 1


def test_the_sign_test_is_that_of_the_book():
    assert evidence.sign_one_sided(10, 0) == 2**-10
    assert evidence.sign_one_sided(8, 2) == pytest.approx(56 / 1024)
    with pytest.raises(ValueError, match="not negative"):
        evidence.sign_one_sided(-1, 0)


def accused(reference_loss, treated_loss, *, windows, runs, pairs=2, spread=0.0, seed=1):
    """How many of `runs` simulated runs are accused; `spread`: how far the loss of a window strays
    from the mean, in both conditions alike.
    """
    rng = random.Random(seed)
    found = 0
    for _ in range(runs):
        compared = []
        for window in range(windows):
            more = rng.uniform(-spread, spread)
            for _ in range(pairs):
                kept = [rng.random() >= loss + more for loss in (reference_loss, treated_loss)]
                compared.append(pair(window, *kept))
        found += paired.count(compared).confirmed(ALPHA, LEAST_DIFFERENCE)
    return found


@pytest.mark.parametrize(("loss", "spread"), [(0.02, 0.0), (0.2, 0.2), (0.5, 0.0), (0.8, 0.2)])
def test_a_target_that_is_equally_noisy_in_both_conditions_is_not_accused(loss, spread):
    """At level 0.001 a run may be accused in one of 1000. Of 1000 runs, more than 5 are accused
    with a chance of 0.06 % where that holds, so these seeds say what the test promises.
    """
    assert accused(loss, loss, windows=40, runs=1000, spread=spread) <= 5


def test_a_treated_condition_that_is_a_little_noisier_is_not_accused():
    """Near-ties that flip more often in company: 3 % of answers against 1 %, so 4 % of windows. The
    sign test alone sees that difference in the end; the least difference keeps it from being an
    accusation: measured 0 of 300 runs of 60 windows and 0 of 30 of 600.
    """
    assert accused(0.01, 0.03, windows=60, runs=300) == 0
    assert accused(0.01, 0.03, windows=600, runs=30) == 0
    assert evidence.sign_one_sided(36, 12) <= ALPHA  # about what 600 windows show


@pytest.mark.parametrize("pairs", [1, 2, 6])
def test_the_margin_is_per_answer_however_many_a_window_has(pairs):
    """2 % more of answers are lost: 0 of 200 accused at 1, 2 and 6 pairs; a tenth of windows with
    six pairs go up then, which a margin of the windows would not stand.
    """
    assert accused(0.0, 0.02, windows=36, runs=200, pairs=pairs) == 0


@given(st.integers(1, 40), st.integers(1, 6), st.floats(0, 0.5))
def test_the_margin_of_windows_is_that_of_any_of_their_answers(windows, pairs, share):
    signs = paired.Signs(windows=windows, pairs=windows * pairs, ups=0, downs=0, first=None)
    assert signs.margin(share) == pytest.approx(1 - (1 - share) ** pairs)


def test_a_condition_that_loses_a_third_is_found():
    assert accused(0.01, 0.33, windows=60, runs=200) >= 195
