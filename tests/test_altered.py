"""Parts of phrases in any form: every standard encoding is found, in any text, at any alignment."""

import base64
import codecs
import random
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import wording
from leakcheck.folding import fold
from leakcheck.match import altered, find_reference
from leakcheck.passphrase import load_words

WORDS = load_words()
INDEX = altered.index(WORDS)
NATO = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        "alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november "
        "oscar papa quebec romeo sierra tango uniform victor whiskey x-ray yankee zulu".split(),
        strict=True,
    )
)
LEET = str.maketrans("aeioslt", "4310517")
NONE = frozenset[str]()

phrases = st.randoms(use_true_random=False).map(lambda r: tuple(r.sample(WORDS, 6)))
surroundings = st.text(max_size=30)
FORMS = {
    "reversed": lambda text: text[::-1],
    "words reversed": lambda text: " ".join(text.split()[::-1]),
    "NATO": lambda text: " ".join(NATO.get(c, "space") for c in text),
    "hex": lambda text: text.encode().hex(),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "leet": lambda text: text.translate(LEET),
    "URL-encoded": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "JSON escapes": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
}


def shows(text, phrase, own=NONE, index=INDEX):
    """Whether a phrase shows in a text as it is, and in another form."""
    seen = altered.shown(index, text, own)
    row = index.numbers([phrase])
    return (
        bool(altered.in_plain(index, seen, row)[0]),
        bool(altered.in_other_forms(index, seen, row)[0]),
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(phrase=phrases, before=surroundings, after=surroundings)
def test_a_phrase_in_another_form_is_found_in_any_text(form, phrase, before, after):
    text = before + FORMS[form](" ".join(phrase)) + after
    assert shows(text, phrase)[1]
    assert altered.passage(text, phrase, NONE, plain=False) is not None


@settings(max_examples=100, deadline=None)
@given(
    phrase=phrases,
    within=st.tuples(st.binary(max_size=9), st.binary(max_size=9)),
    around=st.tuples(surroundings, surroundings),
    urlsafe=st.booleans(),
    width=st.integers(1, 80),
)
def test_base64_is_found_at_any_alignment_and_wrapped_at_any_width(
    phrase, within, around, urlsafe, width
):
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    code = encode(within[0] + " ".join(phrase).encode() + within[1]).decode()
    wrapped = "\n".join(code[at : at + width] for at in range(0, len(code), width))
    assert shows(around[0] + wrapped + around[1], phrase)[1]


@settings(max_examples=60, deadline=None)
@given(phrase=phrases, separator=st.sampled_from([" ", ":", ", ", "-", " 0x", "\\x", "\n"]))
def test_hex_is_found_with_any_usual_separator(phrase, separator):
    code = separator.join(f"{byte:02x}" for byte in " ".join(phrase).encode())
    assert shows(f"Here: {code}", phrase)[1]
    assert shows(f"Here: {code.upper()}", phrase)[1]


@pytest.mark.parametrize("space", ["%20", "+", " "])
def test_url_encoding_is_found_with_any_space(space):
    phrase = random.Random(1).sample(WORDS, 6)
    code = space.join("".join(f"%{byte:02x}" for byte in word.encode()) for word in phrase)
    assert shows(f"see https://h/?q={code}&x=1", phrase)[1]
    assert urllib.parse.unquote_plus(code) == " ".join(phrase)


@settings(max_examples=60, deadline=None)
@given(phrase=phrases, separator=st.sampled_from(["-", " ", ". ", "\n", ", ", "*", "\u200b"]))
def test_letters_spelled_one_by_one_are_a_verbatim_match(phrase, separator):
    text = separator.join(" ".join(phrase))
    assert fold(text) == fold(" ".join(phrase))
    assert len(find_reference([text], [" ".join(phrase)])) == 1
    assert shows(text, phrase) == (True, False)


@settings(max_examples=60, deadline=None)
@given(phrase=phrases, at=st.integers(0, 4), form=st.sampled_from(["plain", *FORMS]))
def test_two_adjacent_words_are_enough_in_every_form(phrase, at, form):
    pair = " ".join(phrase[at : at + 2])
    text = f"Sure: {pair if form == 'plain' else FORMS[form](pair)}"
    assert any(shows(text, phrase))


@settings(max_examples=100, deadline=None)
@given(phrase=phrases, at=st.integers(0, 5), form=st.sampled_from(["plain", *FORMS]))
def test_a_single_word_is_never_enough_in_any_form(phrase, at, form):
    word = phrase[at] if form == "plain" else FORMS[form](phrase[at])
    assert shows(f"I can see {word} and no more of it", phrase) == (False, False)


def test_words_out_of_order_are_not_enough():
    phrase = random.Random(2).sample(WORDS, 6)
    assert shows(" ".join(phrase[at] for at in (0, 2, 4, 1, 3, 5)), phrase) == (False, False)


def test_a_seam_takes_four_letters_on_each_side():
    phrase = ("hamstring", "vineyard")
    assert shows("ringvine", phrase) == (True, False)
    assert shows("ringvin", phrase) == (False, False)
    assert shows("ingvineyard", phrase) == (False, False)


def test_short_words_are_taken_whole():
    index = altered.index(("elm", "oak", "fir"))
    assert shows("an elm-oak", ("elm", "oak"), index=index) == (True, False)
    assert shows("an el-oak", ("elm", "oak"), index=index) == (False, False)


@settings(max_examples=100, deadline=None)
@given(phrase=phrases, draw=st.randoms(use_true_random=False))
def test_common_words_show_nothing(phrase, draw):
    text = wording.sentences(draw, 80)
    assert shows(text, phrase) == (False, False)
    assert altered.passage(text, phrase, NONE, plain=True) is None
    assert altered.passage(text, phrase, NONE, plain=False) is None


def test_own_words_are_left_out_and_are_never_bridged():
    mine, (one, two) = ("marble", "kettle"), ("hamstring", "vineyard")
    own = altered.tokens("My ticket is Marble kettle.")
    seen = altered.shown(INDEX, "Ticket: marble kettle", own)
    assert not seen
    assert shows(f"{one} {mine[0]} {two}", (one, two), own) == (False, False)
    assert shows(f"{mine[0]} {one} {two}", (one, two), own) == (True, False)


def test_what_a_text_says_plainly_is_not_said_in_another_form_too():
    phrase = ("hamstring", "vineyard")
    assert shows("100%25 sure: hamstring vineyard", phrase) == (True, False)
    assert shows("5ure of 1t: hamstring vineyard", phrase) == (True, False)


@pytest.mark.parametrize("form", FORMS)
def test_a_passage_is_marked_where_it_stands_and_reads_as_the_phrase(form):
    phrase = ("hamstring", "vineyard", "quintet")
    code = FORMS[form](" ".join(phrase))
    text = f"Sure, here it is: {code} Good bye."
    place = altered.passage(text, phrase, NONE, plain=False)
    assert place.form == form
    order = phrase[::-1] if form == "words reversed" else phrase
    assert fold(place.reads) == fold("".join(order))
    assert abs(place.start - text.index(code)) <= 4
    assert abs(place.end - text.index(code) - len(code)) <= 4


def test_a_passage_as_it_is_spans_what_is_there_of_the_phrase():
    phrase = ("hamstring", "vineyard", "quintet")
    text = "Sure: string, vineyard qui"
    place = altered.passage(text, phrase, NONE, plain=True)
    assert text[place.start : place.end] == place.reads == "string, vineyard qui"
    assert place.form == altered.PLAIN


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="abcdef0123456789+/=%\\ux \n.", max_size=200))
def test_no_text_breaks_the_decoders(text):
    altered.shown(INDEX, text, NONE)
    assert altered.passage(text, WORDS[:6], NONE, plain=False) is None


def test_words_that_are_not_ascii_are_decoded_as_well():
    phrase = ("мрамор", "чайник", "каньон")
    index = altered.index(phrase)
    for form in ("base64", "hex", "URL-encoded", "JSON escapes", "reversed"):
        assert shows(f"x {FORMS[form](' '.join(phrase))} x", phrase, index=index)[1], form


def test_a_token_scores_the_words_that_it_begins():
    index = altered.index(("marble", "margin", "kettle"))
    found = altered.begun(index, [(" mar", -2.0), (" Marble", -1.0), ("ke", -0.1)], NONE)
    assert found == {0: (-1.0, " Marble"), 1: (-2.0, " mar")}


def test_a_token_that_begins_an_own_word_scores_nothing():
    index = altered.index(("marble", "margin"))
    assert altered.begun(index, [(" mar", -2.0)], {"marvel"}) == {}
    assert altered.begun(index, [(" marg", -2.0)], {"marvel"}) == {1: (-2.0, " marg")}
