"""Of two requests with one prompt and another max_tokens or stop, none gets the other's answer."""

import random
from dataclasses import replace

import pytest
from pretending import Reply, history, noisy, obedient, plan, played, say

from leakcheck.checks import contract

WINDOWS = 14
TWINS, TOGETHER = "twins", "twins, together"
LONGER, CUT = "the own max_tokens", "no max_tokens of another"
BEYOND, STOPPED = "the own stop string", "no stop string of another"


def cached(*left_out, model=obedient, hit=lambda reply: reply):
    """A cache of answers in front of a model, whose key leaves these parameters out."""
    kept = {}

    def answer(request, company):
        if request.sampling.temperature:
            return model(request, company)
        bare = replace(request.sampling, **{name: NOTHING[name] for name in left_out})
        key = request.tenant, request.window, request.messages, bare
        if key in kept:
            return hit(kept[key])
        return kept.setdefault(key, model(request, company))

    return answer


NOTHING = {"max_tokens": 0, "stop": ()}


def findings(model, windows=WINDOWS, **options):
    h = history("parameter-twins", windows, model, **options)
    return h, {f.evidence["aspect"]: f for f in contract.check(h).findings}


def accused(model, windows=WINDOWS, **options):
    _, found = findings(model, windows, **options)
    return {aspect for aspect, f in found.items() if f.severity == "corruption"}


# --- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_out", "aspects"), [("max_tokens", {LONGER, CUT}), ("stop", {BEYOND})]
)
def test_a_cache_that_leaves_a_parameter_out_of_its_key_is_accused(left_out, aspects):
    assert accused(cached(left_out)) == aspects


def test_a_stop_string_that_cuts_the_free_twin_takes_thirteen_windows_that_have_one():
    assert STOPPED not in accused(cached("stop"), 24)
    assert STOPPED in accused(cached("stop"), 28)


@pytest.mark.parametrize(("left_out", "aspect"), [("max_tokens", LONGER), ("stop", BEYOND)])
def test_the_finding_names_both_twins_and_shows_the_answer(left_out, aspect):
    h, found = findings(cached(left_out))
    finding = found[aspect]
    recipient, source = h.by_id(finding.recipient), h.by_id(finding.source)
    assert recipient.messages == source.messages
    assert recipient.tenant == source.tenant
    assert finding.source in finding.explanation
    assert "word for word" in finding.explanation
    assert finding.anomaly == "foreign-parameters"


def test_three_windows_with_such_twins_are_needed_and_four_where_chance_may_cut():
    assert accused(cached("max_tokens"), 4) == set()
    assert accused(cached("max_tokens"), 5) == {LONGER}
    assert accused(cached("max_tokens"), 7) == {LONGER, CUT}


def test_an_answer_that_its_twin_gets_while_it_is_made_is_found():
    """Nothing is kept; requests that come together share one answer."""
    shared = {}

    def model(request, company):
        if request.cell != TOGETHER:
            return obedient(request, company)
        return shared.setdefault((request.window, request.messages), obedient(request, company))

    assert accused(model, 40, load__phantoms=0) == {LONGER, CUT, BEYOND}


@pytest.mark.parametrize("tokens", [None, 0])
def test_a_hit_whose_tokens_are_not_counted_is_found_by_its_text(tokens):
    model = cached("max_tokens", hit=lambda reply: replace(reply, tokens=tokens))
    assert LONGER in accused(model)


# --- what is nobody's fault ----------------------------------------------------------------------


def never(field, value):
    return lambda request, _: say(request, replace(request.sampling, **{field: value}))


def capped(most):
    return lambda request, _: say(
        request, replace(request.sampling, max_tokens=min(most, request.sampling.max_tokens))
    )


def refusing(request, company):
    """Hardly anybody is obeyed, and all are told so in the same words."""
    return obedient(request, company) if request.cell == "alone" else Reply(text="I cannot.")


def ending_at(share):
    """A model that ends by itself where the stop string stands, of some prompts."""

    def model(request, company):
        reply = obedient(request, company)
        words = request.messages[-1].content.split()
        half = len(words) // 2 + 1
        if request.cell in {TWINS, TOGETHER} and random.Random(words[-1]).random() < share:
            return replace(reply, text=" ".join(words[2:half]), finish="stop", tokens=half - 2)
        return reply

    return model


def fuzzy(share, seed=0):
    """A model that changes its mind about how much it says."""
    draws = random.Random(seed)

    def model(request, company):
        reply = obedient(request, company)
        if draws.random() >= share:
            return reply
        words = reply.text.split()[: draws.randint(1, 12)]
        return replace(reply, text=" ".join(words), tokens=len(words), finish="stop")

    return model


def stops_that_nobody_obeys_and_words_that_are_seldom_reached(request, _):
    reply = say(request, replace(request.sampling, stop=()))
    if request.cell == "alone" or random.Random(request.messages[-1].content).random() < 0.3:
        return reply
    words = reply.text.split()[:3]
    return replace(reply, text=" ".join(words), tokens=len(words), finish="stop")


HONEST = {
    "obedient": obedient,
    "a cache that keeps parameters apart": cached(),
    "no max_tokens": never("max_tokens", 64),
    "no stop": never("stop", ()),
    **{f"at most {most}": capped(most) for most in (3, 4, 7, 11, 13)},
    "refusing": refusing,
    **{f"ends in the middle: {share}": ending_at(share) for share in (0.1, 0.5, 1.0)},
    **{f"fuzzy: {share}": fuzzy(share) for share in (0.05, 0.5)},
    "noisy": noisy(obedient, 0.3),
    "stops seldom reached": stops_that_nobody_obeys_and_words_that_are_seldom_reached,
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_server_is_not_accused(name):
    assert accused(HONEST[name], 24, load__phantoms=0) == set()


def test_without_any_count_of_tokens_length_is_not_held_against_the_target():
    def model(request, company):
        return replace(obedient(request, company), tokens=None)

    assert accused(model) == set()
    assert accused(cached("max_tokens", model=model)) <= {CUT}


def test_a_cache_that_is_full_at_any_length_is_not_accused():
    """Everybody in company may be cut anywhere, also where the twin's max_tokens are."""
    of = plan("parameter-twins", 40, load__phantoms=0)
    for seed in range(3):
        draws = random.Random(seed)

        def model(request, company, draws=draws):
            reply = obedient(request, company)
            if not company or draws.random() >= 0.2:
                return reply
            words = reply.text.split()[: draws.randint(1, 14)]
            return replace(reply, text=" ".join(words), tokens=len(words), finish="length")

        found = contract.check(played(of, model)).findings
        assert [f for f in found if f.severity != "note"] == []


# --- the traffic ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs():
    requests = plan("parameter-twins", 40).requests
    by_id = {r.id: r for r in requests}
    return [(by_id[r.partner], r) for r in requests if r.cell in {TWINS, TOGETHER} and r.partner]


def test_twins_of_one_prompt_differ_in_one_parameter_alone(pairs):
    assert len(pairs) == 120
    for first, second in pairs:
        one, other = first.sampling, second.sampling
        assert (first.messages, first.tenant) == (second.messages, second.tenant)
        assert (first.stream, first.key, first.cache_salt) == (second.stream, None, None)
        assert replace(one, max_tokens=1) == replace(other, max_tokens=1) or (
            replace(one, stop=()) == replace(other, stop=())
        )
        assert one != other


def test_their_prompt_is_nobody_elses(pairs):
    texts = [first.messages for first, _ in pairs]
    assert len(set(texts)) == len(texts)


def test_either_order_comes_in_every_window_and_some_come_together(pairs):
    for window in range(40):
        mine = [(a, b) for a, b in pairs if a.window == window]
        apart = [(a, b) for a, b in mine if a.cell == TWINS]
        assert len(mine) == 3
        assert all(b.phase == a.phase + 1 for a, b in apart)
        assert all(b.phase == a.phase for a, b in mine if a.cell == TOGETHER)
        tight_first = [
            bool(a.sampling.stop) or a.sampling.max_tokens < b.sampling.max_tokens for a, b in apart
        ]
        assert sorted(tight_first) == [False, True]


def test_what_they_repeat_is_longer_than_the_limit_and_has_the_stop_string_inside(pairs):
    for pair in pairs:
        text = pair[0].messages[-1].content
        for sampling in (each.sampling for each in pair):
            assert all(text.count(stop) == 1 for stop in sampling.stop)
            assert all(20 < text.index(stop) < len(text) - 12 for stop in sampling.stop)
        if not any(each.sampling.stop for each in pair):
            words = len(text.split(": ")[1].split())
            limits = sorted(each.sampling.max_tokens for each in pair)
            assert 4 <= limits[0] < 12 < words < limits[1]
