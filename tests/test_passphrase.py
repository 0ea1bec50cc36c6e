"""Passphrases: drawn at random, disjoint in a window, counted, and in nobody else's payload."""

import itertools
import math
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from leakcheck.errors import UsageError
from leakcheck.folding import fold
from leakcheck.passphrase import (
    FALSE_MATCH_LIMIT,
    VARIANTS,
    Minter,
    assert_separate,
    entropy,
    false_match_bound,
    in_other_forms,
    load_words,
    phantoms,
    phantoms_of,
    rare_token_words,
    require_entropy,
    whole_token_words,
    words_needed,
)
from leakcheck.records import (
    Gate,
    Load,
    Message,
    Passphrase,
    Plan,
    PlugIn,
    Request,
    Sampling,
    Scenario,
)

WORDS = load_words()


def minter(seed=0, words=WORDS, length=6):
    return Minter(random.Random(seed), words, "phrase", length)


def spelled(text):
    return Passphrase(words=tuple(text.split()), style="phrase", entropy_bits=66.0)


def asked(name, text, **fields):
    return Request(
        **{
            "id": name,
            "scenario": "tiny",
            "window": 0,
            "phase": 0,
            "arm": "planted",
            "tenant": name,
            "role": "recipient",
            "ask": "eliciting",
            "worker": 0,
            "lane": 0,
            "messages": (Message(role="user", content=text),),
            "sampling": Sampling(),
        }
        | fields
    )


def planned(*requests, words=WORDS, length=6, drawn=20):
    scenario = Scenario(
        name="tiny",
        version=1,
        summary="",
        load=Load(windows=1, passphrase_words=length, phantoms=drawn),
        traffic=PlugIn(name="concurrent"),
        checks=(),
        gate=Gate(),
        digest="",
        path="tiny.toml",
    )
    return Plan(scenario=scenario, seed=1, words=words, style="phrase", requests=requests)


def traffic(windows, per_window, length=6, words=WORDS):
    requests = []
    for window in range(windows):
        mint = minter(window, words, length).mint
        for _ in range(per_window):
            phrase = mint()
            name = f"r{len(requests)}"
            text = f"My passphrase is {phrase.text}."
            requests.append(asked(name, text, window=window, passphrase=phrase))
    return planned(*requests, words=words, length=length)


# --- words ---------------------------------------------------------------------------------------


def test_the_shipped_words_are_enough_and_spell_one_phrase_at_most():
    assert len(WORDS) >= 2048
    assert all(word.isascii() and word.islower() and len(word) >= 5 for word in WORDS)
    assert all(fold(word) == word for word in WORDS)
    assert not any(b.startswith(a) for a, b in itertools.pairwise(sorted(WORDS)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("walnut\nWalnut\n", r"list:2: 'Walnut' is no word; use lower-case letters"),
        ("walnut\n# more\nwal nut\n", r"list:3: 'wal nut' is no word"),
        ("café\n", r"list:1: 'café' is no word"),
        ("walnut\n\nwalnut\n", r"list:3: 'walnut' is already in line 1"),
        ("walnuts\nkettle\nwalnut\n", r"list:1: 'walnuts' begins with 'walnut' of line 3"),
    ],
)
def test_a_list_that_could_not_tell_phrases_apart_is_refused(tmp_path, text, sentence):
    path = tmp_path / "list"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=sentence):
        load_words(path)


def test_a_list_of_your_own_is_read_without_comments(tmp_path):
    path = tmp_path / "list"
    path.write_text("# mine\nwalnut\n\n  kettle  \n")
    assert load_words(path) == ("walnut", "kettle")


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "none"
    with pytest.raises(UsageError, match="none: the list of words cannot be read"):
        load_words(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="none: the list of words cannot be read"):
        load_words(path)


def test_importing_and_minting_need_no_numpy():
    code = (
        "import random, sys\n"
        "from leakcheck.passphrase import Minter, load_words\n"
        "Minter(random.Random(1), load_words(), 'phrase', 6).mint()\n"
        "sys.exit('numpy' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=root)


# --- tokenizers ----------------------------------------------------------------------------------


def pseudo_words(seed, count):
    rng = random.Random(seed)
    made = set()
    while len(made) < count:
        made.add("".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3)))
    return rng.sample(sorted(made), count)


def trained(common, added=()):
    """A byte-level BPE tokenizer; the earlier a word stands in `common`, the smaller its id."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    lines = [
        " ".join(["We say", *[word] * (2 + (len(common) - rank) // 20), "and more."])
        for rank, word in enumerate(common)
    ]
    tokenizer.train_from_iterator(lines, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    fast.add_tokens(list(added))
    return fast


@pytest.fixture(scope="module")
def tokenizer():
    return trained([*WORDS[:900], *pseudo_words(1, 300)], added=["marmoset"])


def test_shipped_words_that_are_whole_tokens_are_kept_and_no_others(tokenizer):
    words = whole_token_words(tokenizer, [*WORDS, "marmoset"])
    assert len(words) >= 512
    assert set(words) <= set(WORDS[:900])
    for word in words:
        ids = tokenizer.encode(f"They told {word}, {word} and {word}.", add_special_tokens=False)
        assert max(Counter(ids).values()) == 3


def test_an_added_token_and_a_short_word_do_not_qualify(tokenizer):
    assert len(tokenizer.encode("We say marmoset", add_special_tokens=False)) <= 4
    assert "marmoset" not in rare_token_words(tokenizer, ["marmoset", *WORDS[:900]])
    short = trained(["gnu", *WORDS[:600]])
    assert "gnu" not in rare_token_words(short, ["gnu", *WORDS[:600]])


def test_with_few_shipped_words_the_middle_of_the_vocabulary_fills_up():
    made = pseudo_words(2, 1500)
    tokenizer = trained([*made, *(word + "s" for word in made[:20])])
    words = rare_token_words(tokenizer, WORDS[:50])
    vocabulary = tokenizer.get_vocab()
    ids = sorted(
        number
        for token, number in vocabulary.items()
        if token[0] == "Ġ" and len(token) > 5 and token[1:].isalpha()
    )
    chosen = [vocabulary["Ġ" + word] for word in words]
    assert len(words) > 300
    assert min(chosen) >= ids[len(ids) // 2]
    assert max(chosen) <= ids[len(ids) - len(ids) // 20]
    assert set(words) <= set(made)


def test_the_length_a_passphrase_needs_grows_as_words_become_few():
    assert words_needed(2304, 64.5, 32) == 6
    assert words_needed(900, 64.5, 32) == 7
    assert words_needed(60, 64.5, 32) is None
    for pool in (300, 900, 2304):
        needed = words_needed(pool, 40.0, 32)
        assert entropy(pool - 31 * needed, needed) >= 40.0
        assert entropy(pool - 31 * (needed - 1), needed - 1) < 40.0


# --- minting -------------------------------------------------------------------------------------


def test_phrases_of_a_window_share_no_word():
    mint = minter().mint
    drawn = [word for _ in range(48) for word in mint().words]
    assert len(set(drawn)) == 48 * 6
    assert set(drawn) <= set(WORDS)


def test_equal_seeds_mint_equal_phrases():
    assert minter(5).mint() == minter(5).mint()
    assert minter(5).mint() != minter(6).mint()


def test_the_entropy_counts_the_phrases_that_were_left():
    pool = list(WORDS[:5])
    mint = minter(words=pool, length=2).mint
    assert mint().entropy_bits == pytest.approx(math.log2(5 * 4))
    assert mint().entropy_bits == pytest.approx(math.log2(3 * 2))
    assert entropy(2048, 6) == pytest.approx(66.0, abs=0.02)
    assert entropy(3, 4) == -math.inf


def test_every_phrase_is_equally_likely():
    pool = list(WORDS[:4])
    draws = Counter(minter(seed, pool, 2).mint().words for seed in range(6000))
    assert len(draws) == 12
    assert chisquare(list(draws.values())).pvalue > 1e-4


def test_a_window_that_needs_too_many_words_is_refused_with_what_helps():
    mint = minter(words=WORDS[:13]).mint
    mint()
    mint()
    with pytest.raises(UsageError, match=r"13 words are enough for 2 .* lower load\.requests or"):
        mint()
    with pytest.raises(UsageError, match="5 words are enough for 0 passphrases"):
        minter(words=WORDS[:5])
    with pytest.raises(UsageError, match=r"load\.passphrase_words: 0 is too few"):
        minter(length=0)


# --- phantoms ------------------------------------------------------------------------------------


def test_phantoms_are_the_same_whenever_they_are_drawn():
    drawn = phantoms(7, "tiny", 3, WORDS, 6, 50)
    assert drawn == phantoms(7, "tiny", 3, WORDS, 6, 50)
    assert phantoms(7, "tiny", 3, ("ant", "bee", "cow", "dog"), 3, 2) == PINNED


PINNED = ["bee cow ant", "dog ant bee"]
"""Drawn once: another result on another version of numpy would unpair old run folders."""


@pytest.mark.parametrize("other", [(8, "tiny", 3), (7, "other", 3), (7, "tiny", 4)])
def test_phantoms_differ_between_seeds_scenarios_and_windows(other):
    assert not set(phantoms(7, "tiny", 3, WORDS, 6, 50)) & set(phantoms(*other, WORDS, 6, 50))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 40))
def test_phantoms_are_as_many_and_as_long_as_asked_for_without_a_word_twice(length, more, count):
    words = WORDS[: length + more]
    drawn = phantoms(1, "tiny", 0, words, length, count)
    assert len(drawn) == count
    assert all(len(set(phrase.split())) == length for phrase in drawn)
    assert {word for phrase in drawn for word in phrase.split()} <= set(words)


def test_phantoms_are_drawn_as_passphrases_are():
    draws = Counter(phantoms(1, "tiny", 0, WORDS[:4], 2, 6000))
    assert len(draws) == 12
    assert chisquare(list(draws.values())).pvalue > 1e-4


def test_phantoms_from_too_few_words_are_refused():
    with pytest.raises(UsageError, match="5 words are enough for 0"):
        phantoms(1, "tiny", 0, WORDS[:5], 6, 1)


# --- the bound -----------------------------------------------------------------------------------


def test_the_bound_is_a_count_of_chances():
    bound = false_match_bound(
        outputs=64, phrases=63, output_chars=1000, variants=8, entropy_bits=54.8
    )
    assert bound == pytest.approx(1e-9, rel=0.05)  # the first row of the table it comes from
    none = false_match_bound(outputs=1, phrases=1, output_chars=1, variants=1, entropy_bits=0.0)
    assert none == 1.0


def test_the_bound_holds_for_phrases_of_few_bits():
    # an answer of three words can show two phrases of two words, of the 20 there are
    pool = WORDS[:5]
    text = " ".join(pool[:3])
    hit = sum(fold(minter(seed, pool, 2).mint().text) in fold(text) for seed in range(4000))
    bound = false_match_bound(
        outputs=1, phrases=1, output_chars=len(fold(text)), variants=1, entropy_bits=entropy(5, 2)
    )
    assert 0.08 < hit / 4000 < 0.12
    assert hit / 4000 <= bound


def test_enough_entropy_passes_and_gives_the_bound():
    assert 0 < require_entropy([traffic(20, 16)]) <= FALSE_MATCH_LIMIT


def test_too_little_entropy_is_refused_with_the_least_length_that_would_do():
    with pytest.raises(UsageError, match=r"load\.passphrase_words to at least (\d)") as caught:
        require_entropy([traffic(20, 16, length=3)])
    least = int(str(caught.value)[-1])
    assert 3 < least <= 6
    require_entropy([traffic(20, 16, length=least)])
    with pytest.raises(UsageError):
        require_entropy([traffic(20, 16, length=least - 1)])


def test_a_list_that_is_too_short_for_any_length_is_said_to_be():
    with pytest.raises(UsageError, match="no length will do with 24 words: use a longer list"):
        require_entropy([traffic(3, 4, length=6, words=WORDS[:24])])


def test_plans_of_one_run_are_counted_together():
    one = traffic(20, 16)
    assert require_entropy([one, one]) == pytest.approx(4 * require_entropy([one]))


# --- separation ----------------------------------------------------------------------------------

SECRET = "walnut kettle banjo violet canyon marble"
OTHER = "acorn pelican turbine glacier saddle mustard"


def test_phrases_that_only_their_owners_hold_are_separate():
    assert_separate([traffic(3, 16)])


@pytest.mark.parametrize("told", [SECRET, SECRET.upper(), SECRET.replace(" ", "-"), f"x{SECRET}y"])
def test_a_phrase_in_another_payload_is_refused_naming_both(told):
    plan = planned(
        asked("a", f"My passphrase is {SECRET}.", passphrase=spelled(SECRET)),
        asked("b", f"Is it {told}?", ticket=spelled(OTHER)),
    )
    with pytest.raises(UsageError, match=r"passphrase of request a, 'walnut .* of request b"):
        assert_separate([plan])


def test_a_phrase_across_the_messages_of_one_request_is_found():
    halves = (
        Message(role="user", content=SECRET[:15]),
        Message(role="assistant", content=SECRET[15:]),
    )
    plan = planned(asked("a", SECRET, passphrase=spelled(SECRET)), asked("b", "", messages=halves))
    with pytest.raises(UsageError, match="payload of request b"):
        assert_separate([plan])


def test_twins_and_replays_own_the_same_phrases():
    first = asked("a", SECRET, passphrase=spelled(SECRET))
    twin = replace(first, id="b", twin="a")
    replay = replace(first, id="c", replays="b", twin=None)
    assert_separate([planned(first, twin, replay)])
    with pytest.raises(UsageError, match="passphrase of request d is the same as"):
        assert_separate([planned(first, twin, replace(first, id="d"))])


def test_twins_that_name_each_other_are_one_payload():
    first = asked("a", SECRET, passphrase=spelled(SECRET), twin="b")
    assert_separate([planned(first, replace(first, id="b", twin="a"))])


def test_a_withheld_passphrase_is_in_nobodys_payload():
    for name in ("a", "b"):
        requests = {
            "a": asked("a", "hello", withheld=spelled(SECRET)),
            "b": asked("b", "hello"),
        }
        assert_separate([planned(*requests.values())])
        said = (Message(role="user", content=SECRET),)
        requests[name] = replace(requests[name], messages=said)
        with pytest.raises(UsageError, match="withheld passphrase of request a"):
            assert_separate([planned(*requests.values())])


def test_a_phrase_inside_another_phrase_is_refused():
    longer = f"{SECRET} acorn"
    plan = planned(
        asked("a", SECRET, passphrase=spelled(SECRET)), asked("b", "", withheld=spelled(longer))
    )
    with pytest.raises(UsageError, match=r"request a, .* withheld passphrase of request b"):
        assert_separate([plan])


def test_a_phantom_in_a_payload_is_no_matter_of_the_plan():
    drawn = phantoms_of(planned(), 0)
    assert_separate([planned(asked("a", f"say {drawn[7].title()}!"))])


def test_phrases_of_different_scenarios_are_compared():
    one = planned(asked("a", SECRET, passphrase=spelled(SECRET)))
    with pytest.raises(UsageError, match="payload of request b"):
        assert_separate([one, replace(planned(asked("b", SECRET, window=1)), seed=2)])


def test_other_forms_are_counted_for_the_phrases_of_a_window():
    one = traffic(20, 16)
    most = in_other_forms(one)
    assert most % (VARIANTS - 1) == 0
    assert most // (VARIANTS - 1) >= 16
