"""The differential: how a target is graded, what is a suspicion, what replays make of it."""

import random
from collections import Counter
from dataclasses import replace

import mixing
import pretending
import pytest
from mixing import confirmed, contaminated, nothing, plan, played

from leakcheck import evidence, wording
from leakcheck.analyzer.confirm import confirmations
from leakcheck.checks import _suspects, divergence
from leakcheck.checks._mixed import CEILING, Threshold, grade, threshold, trials
from leakcheck.traffic.mixed_batch import ALONE, ALONE_AGAIN, COMPANIES, NEUTRAL, PLANTED


def at_random(share, margin=0.2, *, alone=False, seed=0):
    """An honest target that flips near-ties now and then, whoever is beside it."""
    draws = random.Random(seed)

    def change(_request, company):
        if (company or alone) and draws.random() < share:
            return 3, "tied"
        return None

    return change, lambda _request, at: margin if at == 3 else mixing.WIDE


def by_shape(request, company):
    """Rounding that follows the size of the batch: the same flip in every company, every time."""
    return (3, "tied") if company and len(request.messages[-1].content) % 2 else None


def severities(h):
    return {(f.anomaly, f.severity) for f in divergence.check(h).findings}


def only(h, cell):
    return list(h.requests.loc[h.requests["cell"] == cell, "id"])


# --- grade ---------------------------------------------------------------------------------------


def small(windows):
    """One recipient and one companion: where many windows are needed."""
    fewer = {"load__requests": 2, "load__phantoms": 0, "traffic__recipients": 1}
    return pretending.plan(mixing.SCENARIO, windows, **fewer)


def test_a_target_that_repeats_itself_in_a_hundred_windows_is_d0():
    h = played(small(100), nothing)
    assert grade(trials(h)).name == "D0"
    note = divergence.check(h).notes[0]
    assert note.startswith("grade D0")
    assert "0 of 200 answers in neutral company" in note


def test_a_hundred_comparisons_in_fewer_windows_are_no_grade():
    h = played(plan(30), nothing)
    assert grade(trials(h)).neutral.compared > 200
    note = divergence.check(h).notes[0]
    assert note.startswith("no grade: no difference in 30 windows with neutral company, so at most")
    assert f"at most {100 * evidence.upper_bound(0, 30):.2g} % of windows" in note
    assert "at most 9.5 % of windows" in note


def test_a_target_that_differs_in_neutral_company_alone_is_d1():
    change, margin = at_random(0.3)
    assert grade(trials(played(plan(4), change, margin=margin))).name == "D1"


def test_a_target_that_does_not_repeat_itself_alone_is_d2():
    change, margin = at_random(0.3, alone=True)
    assert grade(trials(played(plan(4), change, margin=margin))).name == "D2"


def test_planted_company_has_no_part_in_the_grade():
    def change(_request, company):
        return (0, "other") if any(each.passphrase for each in company) else None

    assert grade(trials(played(small(100), change))).name == "D0"


# --- threshold -----------------------------------------------------------------------------------


def test_without_noise_tau_is_the_floor():
    h = played(plan(2), nothing)
    assert threshold(h, trials(h)).tau == evidence.FLOOR_BF16


def test_differences_without_passphrases_raise_tau_threefold():
    change, margin = at_random(0.5, 0.6)
    h = played(plan(4), change, margin=margin)
    assert threshold(h, trials(h)).tau == pytest.approx(1.8)


def test_damage_in_neutral_company_does_not_hide_a_fault():
    h = played(plan(7), contaminated(0.5))
    rule = threshold(h, trials(h))
    assert rule.null_gap > 2 * CEILING
    assert rule.tau == pytest.approx(CEILING)
    assert any(s.company == PLANTED for s in _suspects.suspects(trials(h), rule))


def test_the_lattice_of_the_logits_is_seen():
    h = played(plan(4), nothing, step=0.125, margin=lambda _request, at: 5 + 0.4 * at)
    assert threshold(h, trials(h)).quantum == 0.125


# --- what is a suspicion, and what becomes of it -------------------------------------------------


def test_a_fault_whose_effect_follows_the_companions_is_corruption():
    h = confirmed(plan(7), contaminated(0.5))
    found = [f for f in divergence.check(h).findings if f.severity == "corruption"]
    assert found
    assert {f.anomaly for f in found} == {"diverted-answer"}
    for f in found:
        # now and then the companion that does it is left out
        assert f.evidence["parted_again"] >= f.evidence["replayed"] - 4
        assert f.evidence["parted_in_other_company"] == 0
        assert "words of these companions" in f.explanation


def test_a_fault_that_takes_other_words_of_the_same_companions_each_time_is_corruption():
    draws = random.Random(3)

    def change(request, company):
        if not company or request.role != "recipient" or draws.random() > 0.4:
            return None
        said = draws.choice([each for each in company if each.role == "companion"])
        return draws.randrange(6), draws.choice(said.ticket.words)

    h = confirmed(plan(7), change)
    assert ("diverted-answer", "corruption") in severities(h)


def test_a_target_that_makes_up_other_words_each_time_is_not_accused():
    draws = random.Random(4)

    def change(_request, company):
        made_up = draws.randrange(6), draws.choice(wording.WORDS)
        return made_up if company and draws.random() < 0.4 else None

    h = confirmed(plan(7), change)
    assert only(h, _suspects.SAME)
    assert severities(h) == {("divergence", "note")}


def test_a_wide_flip_that_every_company_shares_is_noise():
    h = confirmed(plan(7), by_shape, margin=lambda _request, at: 6.0 if at == 3 else mixing.WIDE)
    assert severities(h) == {("divergence", "note")}
    assert not only(h, _suspects.SAME)


def test_near_ties_are_noise_and_nothing_is_sent_again():
    change, margin = at_random(0.4)
    h = played(plan(10), change, margin=margin)
    assert severities(h) == {("divergence", "note")}
    assert confirmations(h) == ()


def test_wide_flips_at_random_are_sent_again_and_stay_noise():
    change, margin = at_random(0.3, 6.0)
    h = confirmed(plan(7), change, margin=margin)
    assert only(h, _suspects.SAME)
    assert severities(h) == {("divergence", "note")}


def one_company(gap, hot=0.0):
    """One request of a hundred is answered otherwise in planted company, each time; alone at
    temperature 1 so often.
    """
    draws = random.Random(6)

    def change(request, company):
        if request.cell == _suspects.MARGIN:
            return (3, "tied") if draws.random() < hot else None
        if request.window == 5 or (request.replays or "") in mine:
            return (3, "tied") if any(each.passphrase for each in company) else None
        return None

    of = small(100)
    mine = {each.id for each in of.requests if each.window == 5}
    return confirmed(of, change, margin=lambda _request, at: gap if at == 3 else mixing.WIDE)


def test_of_a_d0_target_any_difference_is_suspected_and_has_to_prove_wide_at_temperature_1():
    h = one_company(0.1)
    assert len(only(h, _suspects.MARGIN)) == _suspects.MARGINS
    assert ("diverted-answer", "corruption") in severities(h)


def test_a_near_tie_that_one_company_always_flips_is_not_accused():
    """Token counts of the phase decide it: no target follows its companions more honestly."""
    h = one_company(0.06, hot=0.485)
    (found,) = divergence.check(h).findings
    assert found.evidence["p"] < 1e-4
    assert found.evidence["replayed_hot"] == _suspects.MARGINS
    assert (found.anomaly, found.severity) == ("divergence", "note")


def test_a_gap_above_the_threshold_needs_no_temperature():
    h = one_company(6.0, hot=0.485)
    assert not only(h, _suspects.MARGIN)
    assert ("diverted-answer", "corruption") in severities(h)


def test_near_ties_beside_a_suspect_do_not_recur_for_it():
    """A wide flip that happens once, in a phase where another answer always flips a near-tie."""

    def change(request, company):
        if not any(each.passphrase for each in company):
            return None
        if request.tenant == wide:
            return None if request.replays else (2, "wrong")
        return (3, "tied") if request.role == "recipient" else None

    of = plan(7)
    wide = next(each.tenant for each in of.requests if each.window == 4)
    margin = {2: 6.0, 3: 0.1}
    h = played(of, change, margin=lambda _request, at: margin.get(at, mixing.WIDE))
    exact = replace(threshold(h, trials(h)), exact=True)
    suspect = _suspects.suspects(trials(h), exact)[0]
    assert suspect.clear
    assert set(suspect.ways.values()) == {suspect.comparison.way}


def test_an_unfinished_confirmation_is_a_note():
    h = played(plan(7), contaminated(0.5))
    assert severities(h) == {("divergence", "note")}


def test_at_most_four_suspects_of_four_windows_are_sent_again():
    h = played(plan(12), contaminated(0.9))
    accused = _suspects.suspects(trials(h), threshold(h, trials(h)))
    assert len({each.window for each in accused}) == len(accused) == _suspects.MOST_SUSPECTS


def test_replays_are_phases_with_unchanged_payloads_but_for_a_companion_now_and_then():
    h = played(plan(7, requests=12), contaminated(0.5))
    sent = confirmations(h)
    sizes = Counter(each.window for each in sent)
    recipients = Counter(each.window for each in sent if each.role == "recipient")
    assert set(recipients) == set(sizes)
    assert set(recipients.values()) == {4}
    assert set(sizes.values()) == {10, 11, 12}
    for each in sent:
        first = h.by_id(each.replays)
        assert each.messages == first.messages
        assert each.passphrase == first.passphrase
    kinds = [each.cell for each in sent]
    assert kinds.count(_suspects.SAME) == kinds.count(_suspects.OTHER) == len(sent) // 2


def test_nobody_is_suspected_before_the_noise_is_known():
    h = played(plan(6), contaminated(0.5))
    assert not threshold(h, trials(h)).known
    assert confirmations(h) == ()


def test_all_suspects_and_both_looks_share_one_percent():
    h = played(plan(12), contaminated(0.9))
    accused = _suspects.suspects(trials(h), threshold(h, trials(h)))
    assert _suspects.level(accused) == pytest.approx(0.01 / 8)
    assert _suspects.level([]) == pytest.approx(0.005)


# --- without log-probabilities -------------------------------------------------------------------


def test_without_logprobs_a_difference_in_one_company_is_confirmed_by_replays_at_temperature_1():
    h = confirmed(plan(8), contaminated(0.2, seed=2), logprobs=False)
    found = [f for f in divergence.check(h).findings if f.severity == "corruption"]
    assert found
    assert all(f.evidence["replayed_hot"] == _suspects.MARGINS for f in found)


def test_without_logprobs_a_target_that_does_not_follow_temperature_is_not_accused():
    facts = replace(mixing.FACTS, samples=False)
    h = confirmed(plan(8), contaminated(0.2, seed=2), logprobs=False, facts=facts)
    assert only(h, _suspects.SAME)
    assert severities(h) == {("divergence", "note")}


def test_without_logprobs_a_near_tie_shows_at_temperature_1():
    fault, draws = contaminated(0.2, seed=2), random.Random(1)

    def change(request, company):
        if request.cell == _suspects.MARGIN:
            return (draws.randrange(8), "tied") if draws.random() < 0.9 else None
        return fault(request, company)

    h = confirmed(plan(8), change, logprobs=False)
    assert only(h, _suspects.MARGIN)
    assert severities(h) == {("divergence", "note")}


def test_without_logprobs_answers_that_write_freely_are_no_suspects():
    h = played(plan(8), contaminated(0.3), logprobs=False)
    of = [replace(each, free=True) for each in trials(h)]
    assert _suspects.suspects(of, threshold(h, of)) == []


def test_the_notes_say_which_evidence_was_possible():
    assert "log-probabilities were weighed" in divergence.check(played(plan(2), nothing)).notes[1]
    without = divergence.check(played(plan(2), nothing, logprobs=False))
    assert "gives no log-probabilities" in without.notes[1]


# --- influence -----------------------------------------------------------------------------------


def test_answers_that_differ_more_in_planted_company_are_an_influence_and_no_leak():
    draws = random.Random(0)

    def change(_request, company):
        share = 0.5 if any(each.passphrase for each in company) else 0.1
        return (3, "tied") if company and draws.random() < share else None

    h = confirmed(plan(24), change, margin=lambda _request, at: 0.2 if at == 3 else mixing.WIDE)
    found = [f for f in divergence.check(h).findings if f.anomaly == "influence"]
    assert [f.severity for f in found] == ["note"]
    assert "expert capacity" in found[0].explanation


def test_noise_that_is_the_same_in_every_company_is_no_influence():
    change, margin = at_random(0.3)
    h = played(plan(24), change, margin=margin)
    assert "influence" not in {f.anomaly for f in divergence.check(h).findings}


# --- the table -----------------------------------------------------------------------------------


def test_the_table_counts_each_kind_of_company():
    (table,) = divergence.check(played(plan(5), by_shape)).tables.values()
    rows = {row[0]: row for row in table[1:]}
    assert set(rows) == {
        f"{ALONE_AGAIN} / {ALONE}", *(f"{cell} / {ALONE}" for cell in COMPANIES),
        f"other neutral / {NEUTRAL}",
    }  # fmt: skip
    assert all(row[1] == 20 for row in rows.values())
    assert rows["alone again / alone"][2] == rows["other neutral / neutral"][2] == 0
    assert rows["planted / alone"][2] == rows["neutral / alone"][2] > 0


def test_nothing_to_compare_is_said():
    h = played(replace(plan(1), requests=plan(1).requests[:1]), nothing)
    assert "nothing was compared" in divergence.check(h).notes[0]


# --- error rates of the replays ------------------------------------------------------------------

RUNS = 1500


def verdicts(same, other, suspects, *, hot=None):
    """How many of `RUNS` suspects are confirmed that part again with these chances; with `hot`
    their gaps are not clear, and they leave the answer alone at temperature 1 so often.
    """
    of = _suspects.suspects(trials(played(plan(7), contaminated(0.5))), RULE)[0]
    of = replace(of, clear=hot is None)
    level = _suspects.level([of] * suspects)
    draws, found = random.Random(1), 0
    for _ in range(RUNS):
        seen = _suspects.Replays(
            planned=0, same=0, same_again=0, other=0, other_again=0,
            margins=0, hot=0, hot_otherwise=0,
        )  # fmt: skip
        while any(asked := _suspects.more(of, seen, level)):
            if asked[1]:
                left = sum(draws.random() < hot for _ in asked[1])
                seen = replace(seen, margins=len(asked[1]), hot=len(asked[1]), hot_otherwise=left)
                continue
            n = len(asked[0])
            seen = replace(
                seen,
                planned=seen.planned + n,
                same=seen.same + n,
                same_again=seen.same_again + sum(draws.random() < same for _ in range(n)),
                other=seen.other + n,
                other_again=seen.other_again + sum(draws.random() < other for _ in range(n)),
            )
        found += _suspects.confirmed(of, seen, level)
    return found


RULE = Threshold(tau=1.0, quantum=None, null_gap=None, exact=False)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_with_companies_of_one_shape_less_than_one_honest_run_in_a_hundred_is_accused(chance):
    """Expected at 0.5, the worst: 3.0 in 1000."""
    assert verdicts(chance, chance, 1) <= RUNS / 100


def test_rounding_that_differs_by_company_is_accused_by_recurring_alone_and_not_by_the_rule():
    """Near-ties of 0.06 nats, which a company of other lengths flips in 60 % of the replays and the
    other in 10 %.
    """
    assert verdicts(0.6, 0.1, 1) > 0.6 * RUNS
    assert verdicts(0.6, 0.1, 1, hot=0.485) == 0


def test_a_fault_that_strikes_again_in_seven_of_ten_replays_is_confirmed():
    """Expected: 99 of 100, though four suspects share the error."""
    assert verdicts(0.7, 0.0, _suspects.MOST_SUSPECTS) > 0.95 * RUNS
