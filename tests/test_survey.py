import itertools
from dataclasses import replace

import pytest

from leakcheck import scenario, survey
from leakcheck.errors import TargetError
from leakcheck.passphrase import load_words
from leakcheck.records import Chunk, Observation, Target, TargetFacts, TokenLogprob, Usage


@pytest.fixture(scope="module")
def plan():
    return survey.plan(seed=0, words=load_words(), style="phrase", ids=itertools.count())


def by_seed(seed):
    return f"x{seed}"


def answers(
    plan,
    *,
    block=None,
    before=4,
    after=5,
    per_word=1.0,
    listed=None,
    logprobs=True,
    usage=True,
    hot=by_seed,
):
    """What a target with such a template and such a cache would answer to the survey."""
    for request in plan.requests:
        words = len(request.messages[0].content.split())
        tokens = before + per_word * words + after
        if listed is not None:
            owned = [p for p in (request.ticket, request.passphrase) if p is not None]
            tokens += sum(len(p.words) for p in owned) * (listed - per_word)
            tokens += sum(request.messages[0].content.count(mark) for mark in ".,")
        tokens = round(tokens)
        hit = None if block is None else (tokens - 1) // block * block if request.twin else 0
        asked = request.sampling.top_logprobs is not None
        said = hot(request.sampling.seed) if request.sampling.temperature else "x"
        if said is None:
            continue
        chunk = Chunk(
            text=said, logprobs=(TokenLogprob(token="x", logprob=0.0),) * asked * logprobs
        )
        yield Observation(
            request_id=request.id, worker=0, lane=0, outcome="ok", start_ns=0, end_ns=1,
            chunks=(chunk,),
            usage=Usage(prompt_tokens=tokens, completion_tokens=1, cached_tokens=hit)
            if usage else None,
        )  # fmt: skip


def facts(plan, tokens=None, **target):
    return survey.facts(plan, list(answers(plan, **target)), tokens=tokens)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_the_block_size_is_found_from_cached_tokens(plan, block):
    found = facts(plan, block=block)
    assert found.block_tokens == block
    assert found.reports_cached_tokens


def test_a_target_that_caches_single_tokens_has_no_block(plan):
    found = facts(plan, block=1)
    assert found.block_tokens is None
    assert any("token by token" in note for note in found.notes)


def test_a_target_that_reports_no_cached_tokens_is_said_so(plan):
    found = facts(plan)
    assert not found.reports_cached_tokens
    assert any("does not report cached tokens" in note for note in found.notes)


def test_a_cache_that_never_hits_has_no_block_size(plan):
    found = facts(plan, block=10_000)
    assert (found.block_tokens, found.reports_cached_tokens) == (None, True)


def test_usage_that_is_a_mistake_makes_no_prompt_that_fills_the_memory(plan):
    huge = Usage(prompt_tokens=2**50 + 1, completion_tokens=1, cached_tokens=2**50)
    found = survey.facts(plan, [replace(each, usage=huge) for each in answers(plan)])
    assert (found.block_tokens, found.reports_cached_tokens) == (None, True)
    assert any(f"no cache has blocks of {2**50} tokens" in note for note in found.notes)
    assert facts(plan, per_word=0.01).tokens_per_word == 1.0


def test_tokens_per_word_and_the_template_are_estimated(plan):
    found = facts(plan, per_word=1.5)
    assert found.tokens_per_word == pytest.approx(1.5, abs=0.02)
    assert found.overhead_tokens == 4


def test_without_usage_lengths_are_guesses_and_said_to_be(plan):
    found = facts(plan, usage=False)
    assert (found.overhead_tokens, found.tokens_per_word) == (0, 1.0)
    assert any("reports no usage" in note for note in found.notes)


def test_a_tokenizer_knows_the_template_better(plan):
    found = facts(plan, tokens=survey.Tokens(template=3, per_word=1.0))
    assert found.overhead_tokens == 3


def test_logprobs_are_seen(plan):
    assert facts(plan).reports_logprobs
    assert not facts(plan, logprobs=False).reports_logprobs


@pytest.mark.parametrize(
    ("hot", "samples", "said"),
    [
        (by_seed, True, None),
        (lambda _: "the same", False, "the target ignores temperature or seed"),
        (lambda seed: "x" if seed == 1 else None, None, "the target did not answer at temperature"),
        (lambda _: None, None, "the target did not answer at temperature 2"),
    ],
)
def test_a_target_samples_if_two_seeds_give_two_answers(plan, hot, samples, said):
    found = facts(plan, hot=hot)
    assert found.samples is samples
    told = [note for note in found.notes if "lost tickets cannot be confirmed" in note]
    assert told == [] if said is None else told[0].startswith(said)


def test_a_target_is_asked_hot_twice_for_the_same_with_two_seeds(plan):
    one, two = [r for r in plan.requests if r.sampling.temperature]
    assert (one.messages, one.tenant) == (two.messages, two.tenant)
    assert one.sampling.seed != two.sampling.seed
    assert one.phase != two.phase


def test_a_target_that_answers_nothing_is_an_error_with_its_own_words(plan):
    refused = Observation(
        request_id=plan.requests[0].id, worker=0, lane=0, outcome="failed", start_ns=0, end_ns=1,
        error="quota used up",
    )  # fmt: skip
    with pytest.raises(TargetError, match="quota used up"):
        survey.facts(plan, [refused])


def test_every_prompt_that_can_be_cached_starts_with_a_passphrase(plan):
    for request in plan.requests:
        text = request.messages[0].content
        if len(text.split()) < 16:
            continue
        first_block = " ".join(text.split()[:12])
        assert request.passphrase.text in first_block


def test_each_length_is_sent_twice_with_the_same_payload(plan):
    by_id = {r.id: r for r in plan.requests}
    twins = [r for r in plan.requests if r.twin]
    assert len(twins) >= 8
    assert all(r.messages == by_id[r.twin].messages for r in twins)


@pytest.mark.parametrize("listed", [1.0, 1.9, 3.0])
def test_tokens_of_a_listed_word_are_estimated_from_the_usage(plan, listed):
    found = facts(plan, listed=listed)
    assert found.tokens_per_phrase_word == pytest.approx(listed, abs=0.1)
    assert found.tokens_per_word == 1.0


def test_where_nothing_says_how_long_listed_words_are_phrases_cost_two_tokens_a_word(plan):
    found = facts(plan, usage=False)
    assert found.tokens_per_phrase_word == 2.0
    assert "words of passphrases are taken to be 2 tokens each" in found.notes
    rare = replace(plan, style="rare-token")
    assert facts(rare, usage=False).tokens_per_phrase_word == 1.0


def test_a_tokenizer_knows_how_long_listed_words_are(plan):
    class Letters:
        """A token for each two letters of a word; a template of one word."""

        chat_template = "yes"

        def apply_chat_template(self, messages, **_):
            return f"user {messages[0]['content']}"

        def __call__(self, text, **_):
            return {"input_ids": [0 for word in text.split() for _ in word[::2]]}

    tokens = survey.tokens_of(Letters(), words=("aabbcc", "aabb"))
    assert tokens.per_phrase_word == pytest.approx(2.5)
    assert facts(plan, tokens=tokens).tokens_per_phrase_word == pytest.approx(2.5)


def test_a_target_that_takes_no_high_temperature_gets_its_highest():
    aim = Target(base_url="http://h/v1", model="m", hottest=1.0)
    mild = survey.plan(
        seed=0, words=load_words(), style="phrase", ids=itertools.count(), hottest=aim.hottest
    )
    assert max(each.sampling.temperature for each in mild.requests) == 1.0
    found = survey.facts(mild, list(answers(mild)), target=aim)
    assert found.hottest == 1.0
    assert "the target refuses temperatures above 1: none is sent" in found.notes


def test_equal_answers_at_a_mild_temperature_do_not_say_that_it_is_ignored():
    aim = Target(base_url="http://h/v1", model="m", hottest=1.0)
    mild = survey.plan(
        seed=0, words=load_words(), style="phrase", ids=itertools.count(), hottest=1.0
    )
    same = [replace(each, chunks=(Chunk(text="hello"),)) for each in answers(mild)]
    assert survey.facts(mild, same, target=aim).samples is None


@pytest.mark.parametrize("name", ["parameter-twins", "first-request"])
def test_no_scenario_sends_what_is_too_hot(name):
    of = scenario.read(scenario.find(name), {"load.windows": 2})
    plan = scenario.plan(
        of,
        seed=0,
        facts=TargetFacts(hottest=1.0),
        words=load_words(),
        style="phrase",
        ids=itertools.count(),
    )
    assert max(each.sampling.temperature for each in plan.requests) == 1.0
