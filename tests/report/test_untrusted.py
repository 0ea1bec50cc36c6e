import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.report.untrusted import cut, excerpt, plain, visible

ANYTHING = st.text(st.characters(codec=None))


@given(ANYTHING)
def test_visible_text_holds_nothing_that_is_not_printable_and_encodes_as_utf8(text):
    shown = visible(text)
    assert shown.isprintable()
    shown.encode()


@given(ANYTHING)
def test_visible_text_stays_as_it_is_when_shown_again(text):
    assert visible(visible(text)) == visible(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_ascii_is_shown_unchanged(text):
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202ereversed\u202c", r"\u202ereversed\u202c"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("\ufe0f\u3164", r"\ufe0f\u3164"),
        ("no-break\u00a0space", "no-break space"),
        ("émigré 東京 🙂", "émigré 東京 🙂"),
    ],
)
def test_what_hides_or_moves_text_is_written_out(text, shown):
    assert visible(text) == shown


def test_stacked_combining_marks_are_written_out_after_the_third():
    assert visible("z" + "\u0301" * 5) == "z" + "\u0301" * 3 + r"\u0301\u0301"


@given(ANYTHING, st.integers(-5, 200), st.integers(-5, 200))
def test_an_excerpt_of_a_short_text_is_the_text_split_at_its_mark(text, start, end):
    text = text[:100]
    part = excerpt(text, (start, end))
    begin, stop = min(max(start, 0), len(text)), max(start, end, 0)
    assert part.before == visible(text[:begin])
    assert part.marked == visible(text[begin:stop])
    assert part.after == visible(text[max(begin, min(stop, len(text))) :])


def test_a_long_answer_is_cut_around_its_mark():
    text = "a" * 50_000 + "SECRET" + "b" * 50_000
    part = excerpt(text, (50_000, 50_006))
    assert part.marked == "SECRET"
    assert part.before == "..." + "a" * 160
    assert part.after == "b" * 160 + "..."


def test_a_long_mark_is_cut_and_says_by_how_much():
    part = excerpt("x" * 50_000, (0, 50_000))
    assert part.marked.endswith("(49600 more characters)")
    assert len(part.marked) < 500


@given(st.text(max_size=400), st.integers(1, 200))
def test_nothing_is_cut_by_less_than_the_note_on_it_is_long(text, limit):
    shown = cut(text, limit)
    assert shown == text or len(shown) < len(text)


def test_five_characters_too_many_are_shown():
    assert cut("x" * 305, 300) == "x" * 305
    assert cut("x" * 400, 300) == "x" * 300 + "... (100 more characters)"
    assert excerpt("a" * 162 + "S", (162, 163)).before == "a" * 162


def test_a_long_answer_without_a_mark_keeps_its_beginning():
    assert excerpt("y" * 1000, None).before == "y" * 320 + "... (680 more characters)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "not measured"),
        (True, "yes"),
        (3, "3"),
        (0.123456, "0.1235"),
        ("a\x00", r"a\x00"),
        ({"a": [1]}, '{"a":[1]}'),
    ],
)
def test_a_json_value_is_said_in_words(value, shown):
    assert plain(value) == shown
