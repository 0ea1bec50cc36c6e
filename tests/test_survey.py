import pytest

from leakcheck.records import Usage
from leakcheck.survey import _facts

LENGTHS = (40, 61, 87, 115, 150, 201, 300, 420)


def points(*, block=None, before=4, after=5, per_word=1.0):
    """What a target with such a template and such a cache would say of the survey's prompts."""
    for words in LENGTHS:
        tokens = round(before + per_word * words + after)
        cached = None if block is None else (tokens - 1) // block * block
        yield words, Usage(prompt_tokens=tokens, completion_tokens=1, cached_tokens=cached)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_the_block_size_is_found_from_cached_tokens(block):
    facts = _facts(list(points(block=block)), (), logprobs=True, template_tokens=None)
    assert facts.block_tokens == block
    assert facts.reports_cached_tokens


def test_a_target_that_caches_single_tokens_has_no_block():
    facts = _facts(list(points(block=1)), (), logprobs=True, template_tokens=None)
    assert facts.block_tokens is None
    assert any("in steps of 1 tokens" in note for note in facts.notes)


def test_a_target_that_reports_no_cached_tokens_is_said_so():
    facts = _facts(list(points()), (), logprobs=True, template_tokens=None)
    assert not facts.reports_cached_tokens
    assert any("does not report cached tokens" in note for note in facts.notes)


def test_a_disabled_cache_has_no_block_size():
    zero = [(words, Usage(prompt_tokens=words + 9, cached_tokens=0)) for words in LENGTHS]
    facts = _facts(zero, (), logprobs=True, template_tokens=None)
    assert (facts.block_tokens, facts.reports_cached_tokens) == (None, True)


def test_tokens_per_word_and_the_template_are_estimated():
    facts = _facts(list(points(per_word=1.5)), (), logprobs=True, template_tokens=None)
    assert facts.tokens_per_word == pytest.approx(1.5, abs=0.01)
    assert facts.overhead_tokens == 4


def test_a_tokenizer_knows_the_template_better():
    facts = _facts(list(points()), (), logprobs=True, template_tokens=3)
    assert facts.overhead_tokens == 3
