"""The matcher: what counts as the same phrase, where it stands, and that no path misses a hit."""

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import leakcheck
from leakcheck.folding import fold, origins
from leakcheck.match import FAST_FROM, FAST_FROM_LOADED, Hits, find, find_reference
from leakcheck.match import fast as match_fast
from leakcheck.match.fast import find_fast

PHRASE = "marble kettle banjo violet canyon walnut"
PATHS = pytest.mark.parametrize("search", [find_reference, find_fast])


def rows(hits: Hits) -> list[tuple[int, int, int, int, bool]]:
    columns = (hits.text, hits.start, hits.end, hits.phrase, hits.exact)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def passages(search, text: str, phrase: str = PHRASE) -> list[str]:
    hits = search([text], [phrase])
    return [text[a:b] for a, b in zip(hits.start, hits.end, strict=True)]


@PATHS
@pytest.mark.parametrize(
    "passage",
    [
        PHRASE,
        PHRASE.upper(),
        PHRASE.replace(" ", ""),
        PHRASE.replace(" ", "-"),
        PHRASE.replace(" ", "_\n* "),
        " ".join(PHRASE),
        PHRASE.replace("k", "\N{KELVIN SIGN}"),
        PHRASE.replace("a", "\N{ZERO WIDTH SPACE}a\N{COMBINING ACUTE ACCENT}\N{SOFT HYPHEN}"),
        PHRASE.replace("e", "é"),
        PHRASE.replace("e", "\N{HANGUL FILLER}e"),
        "".join(chr(ord(c) + 0xFEE0) if c != " " else "\N{IDEOGRAPHIC SPACE}" for c in PHRASE),
        "".join(chr(ord(c) + 0x1D3B9) if c != " " else c for c in PHRASE),  # mathematical bold
        PHRASE.replace("n", "\ud800n"),  # half of a surrogate pair, as JSON may bring it
    ],
)
def test_an_altered_phrase_is_found_with_the_passage_it_stands_in(search, passage):
    text = f"Sure! xx{passage}zz. “Bye.”"
    assert passages(search, text) == [passage]
    assert passages(search, "é" + text) == [passage]


@PATHS
def test_a_phrase_that_is_only_nearly_there_is_not_found(search):
    for text in (PHRASE[:-1], PHRASE.replace("kettle", "kettles"), PHRASE[1:], "", "   ", "…"):
        assert len(search([text], [PHRASE])) == 0


@PATHS
def test_only_the_very_same_characters_count_as_exact(search):
    texts = [f"({PHRASE})", PHRASE.title(), PHRASE.replace(" ", "  "), f"“{PHRASE}”"]
    assert search(texts, [PHRASE]).exact.tolist() == [True, False, False, True]


@PATHS
def test_overlapping_prefix_and_equal_phrases_are_all_reported(search):
    phrases = ["abcdefgh ijkl", "abcdefgh ijklmnop", "efgh ijkl mnop", "ABCDEFGHIJKL", "ijkl"]
    found = rows(search(["-abcdefgh ijklmnop-"], phrases))
    assert found == [
        (0, 1, 14, 0, True),
        (0, 1, 14, 3, False),
        (0, 1, 18, 1, True),
        (0, 5, 18, 2, False),
        (0, 10, 14, 4, True),
    ]


@PATHS
def test_a_phrase_that_overlaps_itself_is_found_at_each_place(search):
    assert search(["aa aa aa aa aa"], ["aaaaaaaaa"]).start.tolist() == [0, 1]


@PATHS
def test_a_phrase_never_spans_two_texts(search):
    half = len(PHRASE) // 2
    assert len(search([PHRASE[:half], PHRASE[half:]], [PHRASE])) == 0
    assert len(search([PHRASE[:half] + "é", "é" + PHRASE[half:]], [PHRASE])) == 0


@PATHS
@pytest.mark.parametrize(
    ("texts", "phrases"),
    [([], []), (["a"], []), ([], [PHRASE]), (["", ""], [PHRASE]), (["a -"], ["", "--", "\u200b"])],
)
def test_nothing_to_look_for_or_in_gives_no_hit(search, texts, phrases):
    assert rows(search(texts, phrases)) == []


@PATHS
def test_more_hits_than_expected_are_all_kept(search):
    hits = search(["a" * 5000, "é" + "a" * 5000], ["a" * 30])
    assert len(hits) == 2 * (5000 - 29)


def test_jobs_of_every_size_give_what_the_reference_gives():
    for letters in (0, FAST_FROM_LOADED, FAST_FROM):
        texts = ["the weather is nice " * (letters // 20), f"It is {PHRASE.upper()}."]
        assert rows(find(texts, [PHRASE])) == [(1, 6, 6 + len(PHRASE), 0, False)]


ALPHABET = st.sampled_from(
    [*"aabbAB01 -_.\n*", "é", "e\u0301", "\u200b", "ﬁ", "ß", "İ", "\uff21", "한"]
)
NASTY = st.one_of(st.lists(ALPHABET, max_size=60).map("".join), st.text(max_size=30))
PIECES = st.lists(st.one_of(NASTY, st.sampled_from(["abababab", "aB ab-ab_ab"])), max_size=6)


@st.composite
def jobs(draw) -> tuple[list[str], list[str]]:
    """Texts and phrases that have a lot in common: glued, nested, overlapping, altered."""
    phrases = draw(st.lists(PIECES.map("".join), max_size=6))
    altered = [fold(p) for p in phrases] + [p.upper() for p in phrases] + [p[2:] for p in phrases]
    piece = st.one_of(NASTY, st.sampled_from([*phrases, *altered, "a"]))
    texts = draw(st.lists(st.lists(piece, max_size=5).map("".join), max_size=5))
    return texts, [*phrases, *draw(st.lists(st.sampled_from([*altered, ""]), max_size=4))]


@settings(max_examples=300, deadline=None)
@given(jobs())
@example((["abababab" * 8], ["abababab", "abababababababab" * 2, "b" * 8]))
@example((["ﬁﬁﬁﬁﬁﬁﬁﬁ"], ["ifififififif", "fififi"]))
def test_the_fast_path_finds_exactly_what_the_reference_finds(job):
    texts, phrases = job
    assert rows(find_fast(texts, phrases)) == rows(find_reference(texts, phrases))


@settings(max_examples=200, deadline=None)
@given(jobs())
def test_the_reference_finds_every_phrase_and_its_passage_folds_to_it(job):
    texts, phrases = job
    found = rows(find_reference(texts, phrases))
    expected = sum(
        fold(text).startswith(fold(phrase), at)
        for text in texts
        for phrase in phrases
        if fold(phrase)
        for at in range(len(fold(text)))
    )
    assert len(found) == expected
    for text, start, end, phrase, exact in found:
        passage = texts[text][start:end]
        assert fold(phrases[phrase]) in fold(passage)
        assert exact == (passage == phrases[phrase])


@settings(max_examples=300, deadline=None)
@example("\N{LATIN SMALL LETTER DOTLESS I}")
@given(st.text())
def test_folding_agrees_with_unicode_and_names_where_each_letter_comes_from(text):
    stream = fold(text)
    assert fold(text.upper().lower()) == fold(text.casefold())
    assert fold(unicodedata.normalize("NFC", text)) == stream
    assert fold(unicodedata.normalize("NFKC", text)) == stream
    assert fold(stream) == stream
    assert len(origins(text)) == len(stream)
    assert stream == "".join(fold(text[at]) for at in sorted(set(origins(text))))


@pytest.mark.parametrize("words", [1, 2, 4, 6])
def test_both_paths_agree_on_three_hundred_phrases_of_a_small_vocabulary(words):
    rng = np.random.default_rng(words)
    pool = ["".join(rng.choice(list("abcde"), rng.integers(3, 6))) for _ in range(30)]
    phrases = [" ".join(rng.choice(pool, words)) for _ in range(300)]
    texts = [" ".join(rng.choice([*pool, "é"], 80)) for _ in range(30)]
    texts += [f"Tell {phrase.title()}!" for phrase in phrases[:200]]
    fast, slow = find_fast(texts, phrases), find_reference(texts, phrases)
    assert len(slow) >= 200
    assert rows(fast) == rows(slow)


def test_an_unwritable_cache_folder_does_not_stop_the_fast_path():
    # numba looks for a cache folder beside the module and then in the home folder
    program = (
        "import numba.core.caching as c\n"
        "def refuse(self): raise OSError('read-only')\n"
        "c._CacheLocator.ensure_cache_path = refuse\n"
        "from leakcheck.match.fast import find_fast\n"
        "assert len(find_fast(['say abcdefgh ijklmnop'], ['ABCDEFGH ijklmnop'])) == 1\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(leakcheck.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)


def test_the_benchmark_finds_the_reference_hits_on_a_small_corpus():
    root = Path(leakcheck.__file__).parents[1]
    command = [sys.executable, "-m", "benchmarks.bench_match", "--quick"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "naive double loop" in done.stdout


def test_a_full_disk_under_the_cache_of_compiled_code_does_not_stop_a_search(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(match_fast, "find_fast", full)
    texts = ["the weather is nice " * FAST_FROM_LOADED, PHRASE]
    assert rows(find(texts, [PHRASE])) == [(1, 0, len(PHRASE), 0, True)]
