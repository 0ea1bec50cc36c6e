"""Styles are lists of words; whatever the style, a phrase is found however a model writes it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck import scenario, wording
from leakcheck.certify import RUN_BITS, RUN_PHRASES
from leakcheck.folding import fold
from leakcheck.match import altered, find
from leakcheck.passphrase import Minter, entropy, load_words, phantoms, styles
from leakcheck.records import TargetFacts
from leakcheck.survey import audition
from leakcheck.survey import plan as survey_plan
from leakcheck.survey.choosing import Made

LISTS = {"digits": styles.digit_groups(), "made-up": styles.made_up_words()}
EACH = pytest.mark.parametrize("style", sorted(LISTS))
BETWEEN = ["", " ", ", ", "-", ",", "\n", " - ", "\N{NO-BREAK SPACE}", "**", "_", " | ", ". "]


def minted(style, seed, length=5):
    return Minter(random.Random(seed), LISTS[style], style, length).mint()


@EACH
def test_a_list_has_thousands_of_different_words_and_is_the_same_every_time(style):
    words = LISTS[style]
    assert len(words) == len(set(words)) > 4096
    assert list(words) == sorted(words)
    again = styles.made_up_words.__wrapped__() if style == "made-up" else styles.digit_groups()
    assert words == again


@EACH
def test_no_word_is_within_another(style):
    assert len({len(word) for word in LISTS[style]}) == 1  # equally long, and different


@EACH
def test_no_word_stands_in_what_is_sent_otherwise(style):
    questions = " ".join(text for pair in wording.questions() for text in pair)
    prose = [*wording.WORDS, *load_words(), *wording.TOPICS, *wording.ALIKE, *questions.split()]
    prose += [wording.SYSTEM, wording.NEUTRAL, wording.FREE, wording.blank(12)]
    assert len(find(prose, LISTS[style])) == 0


@EACH
def test_words_are_their_own_folded_form(style):
    assert all(fold(word) == word for word in LISTS[style])


def test_years_and_round_numbers_are_no_digit_groups():
    groups = set(LISTS["digits"])
    assert not groups & {"1984", "2024", "1000", "4400", "7777", "1234", "4321"}


def test_common_words_are_not_made_up():
    assert not set(LISTS["made-up"]) & {"potato", "tomato", "domino", "kimono", "bikini"}


@EACH
def test_five_words_have_the_entropy_that_shipped_scenarios_ask_for(style):
    size = audition.lengths({style: LISTS[style]}, 6, fixed=False)[style]
    assert size == 5
    assert entropy(len(LISTS[style]) - size * (RUN_PHRASES - 1), size) >= RUN_BITS


def test_the_usual_list_keeps_its_length_and_a_fixed_one_holds_for_every_style():
    words = {"phrase": load_words(), **LISTS}
    assert audition.lengths(words, 6, fixed=False)["phrase"] == 6
    assert set(audition.lengths(words, 7, fixed=True).values()) == {7}


@EACH
def test_a_plan_in_a_style_passes_every_proof(style):
    overrides = {"load.windows": 3, "load.passphrase_words": 5}
    its = scenario.read(scenario.find("rare-token-passphrase"), overrides)
    ids = iter(range(100_000))
    first = survey_plan(seed=3, words=LISTS[style], style=style, ids=ids, length=5)
    (plan,) = Made(first=first, scenarios=(its,)).plans(TargetFacts(phrasing="begun"))
    assert {r.ticket.style for r in plan.requests if r.ticket} == {style}


@EACH
def test_phantoms_are_drawn_as_phrases_are(style):
    drawn = phantoms(1, "x", 0, LISTS[style], 5, 50)
    assert len(set(drawn)) == 50
    assert set(" ".join(drawn).split()) <= set(LISTS[style])


@EACH
@given(
    seed=st.integers(0, 2**32), between=st.lists(st.sampled_from(BETWEEN), min_size=4, max_size=4)
)
def test_a_phrase_is_found_however_its_words_are_separated(style, seed, between):
    phrase = minted(style, seed)
    text = "".join(word + gap for word, gap in zip(phrase.words, [*between, ""], strict=True))
    assert len(find([f"It is {text}."], [phrase.text])) == 1
    assert len(find([f"It is {text.upper()}."], [phrase.text])) == 1


@given(seed=st.integers(0, 2**32), gap=st.sampled_from(BETWEEN))
def test_digits_are_found_with_separators_of_thousands_and_in_full_width(seed, gap):
    phrase = minted("digits", seed)
    thousands = gap.join(f"{int(word):,}" for word in phrase.words)
    spaced = gap.join(" ".join(word) for word in phrase.words)
    wide = gap.join("".join(chr(0xFF10 + int(digit)) for digit in word) for word in phrase.words)
    for text in (thousands, spaced, wide):
        assert len(find([text], [phrase.text])) == 1


@EACH
@given(seed=st.integers(0, 2**32), data=st.data())
def test_a_phrase_with_one_word_changed_is_another_one(style, seed, data):
    phrase = minted(style, seed)
    at = data.draw(st.integers(0, 4))
    other = data.draw(st.sampled_from(LISTS[style][:200]).filter(lambda w: w not in phrase.words))
    text = " ".join(other if number == at else word for number, word in enumerate(phrase.words))
    assert len(find([text], [phrase.text])) == 0


def test_counting_and_dates_hold_no_two_adjacent_groups_of_a_phrase():
    said = " ".join(map(str, range(1, 200))) + " 12/05/2026 10:30 3.14159265"
    seams = altered.shown(altered.index(LISTS["digits"]), said, ()).plain
    share = len(seams) / len(LISTS["digits"]) ** 2
    assert share < 2e-5  # that four adjacent pairs of a phrase show one: less than 1 in 10,000


def test_six_and_nine_are_not_the_same_in_any_form():
    phrase = ("6163", "4587", "2096", "8731", "5240")
    swapped = " ".join(phrase).translate(str.maketrans("69", "96"))
    assert altered.whole(f"a1 {swapped}", phrase) is None
    index = altered.index(LISTS["digits"])
    seen = altered.shown(index, f"a1 {' '.join(phrase)}", ())
    assert len(seen.plain) >= 4
    assert not seen.leet
