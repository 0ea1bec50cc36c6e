"""Which words a run takes, before anything is sent."""

import re

import pytest

from leakcheck import scenario
from leakcheck.errors import UsageError
from leakcheck.passphrase import load_words
from leakcheck.run.session import Setup
from leakcheck.survey import choosing

WORDS = load_words()


class Pieces:
    """A tokenizer: words of its list, after a space, are one token; all else goes by characters."""

    all_special_ids = ()
    chat_template = None

    def __init__(self, whole):
        self._ids = {f" {word}": number for number, word in enumerate(whole, 0x110000)}
        self._texts = {number: text for text, number in self._ids.items()}

    def get_vocab(self):
        return {text.replace(" ", "Ġ"): number for text, number in self._ids.items()}

    def get_added_vocab(self):
        return {}

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        pieces = re.findall(r" ?[a-zA-Z]+|[^a-zA-Z]", text)
        ids = [[self._ids[p]] if p in self._ids else list(map(ord, p)) for p in pieces]
        return [number for each in ids for number in each]

    def decode(self, token_ids):
        return "".join(self._texts.get(number) or chr(number) for number in token_ids)


def chosen(tokenizer, *, windows, words=None):
    its = scenario.read(scenario.find("rare-token-passphrase"), {"load.windows": windows})
    made = choosing.made([its], Setup(words=words), tokenizer)
    return made.first, made.notes


def test_without_a_tokenizer_the_listed_words_are_phrases():
    first, notes = chosen(None, windows=2)
    assert (first.style, first.words, notes) == ("phrase", WORDS, ())


def test_words_that_are_all_whole_tokens_are_rare_tokens():
    first, notes = chosen(Pieces(WORDS), windows=2)
    assert (first.style, first.words, notes) == ("rare-token", WORDS, ())


def test_few_whole_tokens_are_taken_where_they_suffice():
    first, notes = chosen(Pieces(WORDS[:700]), windows=2)
    assert (first.style, set(first.words), notes) == ("rare-token", set(WORDS[:700]), ())


def test_too_few_whole_tokens_give_phrases_of_all_words_and_a_note():
    first, (note,) = chosen(Pieces(WORDS[:500]), windows=60)
    assert (first.style, first.words) == ("phrase", WORDS)
    assert f"only 500 of {len(WORDS)} listed words are whole tokens" in note


def test_a_list_of_the_users_is_taken_as_it_is(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS[:1200]))
    first, notes = chosen(Pieces(WORDS[:500]), windows=2, words=tmp_path / "words.txt")
    assert (first.style, first.words, notes) == ("phrase", WORDS[:1200], ())


def test_a_list_of_the_users_that_is_too_short_is_refused_with_the_length_that_would_do(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS[:500]))
    with pytest.raises(UsageError, match=r"set load\.passphrase_words to at least \d+"):
        chosen(None, windows=60, words=tmp_path / "words.txt")
