"""The witness's tokenizer: every rare word one token, every other text representable.

A Unigram model over GPT-2's byte alphabet, built from an explicit vocabulary instead of being
fitted to a corpus. All 256 bytes are tokens, so `decode(encode(text)) == text` for every
`str` that has a UTF-8 form, spaces and newlines included; nothing is normalised.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from leakcheck.engine.training import phrasing, prose

SYSTEM, USER, ASSISTANT, END, PAD = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
SPECIALS = (PAD, END, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{ '<|assistant|> ' + message['content'] | trim + '<|end|>' }}"
    "{%- else -%}"
    "{{ '<|' + message['role'] + '|> ' + message['content'] + '<|end|>' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

_SPACE = "\u0120"  # how the byte alphabet writes a space
# A piece costs 10 whatever it is, a lone byte 12: the segmentation with the fewest pieces wins, so
# that a whole word is never split.
_PIECE_SCORE, _BYTE_SCORE = -10.0, -12.0
_FRAGMENTS = 500


def rare_words(path: Path | None = None) -> list[str]:
    """The words of `leakcheck/words.txt` (or of another file in its format), in order."""
    source = path if path is not None else files("leakcheck") / "words.txt"
    lines = source.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _prose_pieces() -> list[str]:
    """Tokens of ordinary text: words after a space, sentence openers, figures and fragments."""
    text = f"{prose.all_text()} {phrasing.all_text()}"
    words = Counter(re.findall(r"[A-Za-z]+", text))
    fragments: Counter[str] = Counter()
    for word in words:
        for size in (2, 3):
            fragments.update(word[i : i + size].lower() for i in range(len(word) - size + 1))
            fragments[_SPACE + word[: size - 1].lower()] += 1
    pieces = [_SPACE + word for word in words]
    pieces += [_SPACE + str(number) for number in range(100)]
    pieces += [word for word in words if word[0].isupper()]
    pieces += [_SPACE + mark for mark in "-(\"'"] + [" "]
    pieces += [fragment for fragment, _ in fragments.most_common(_FRAGMENTS)]
    return pieces


def build_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """The tokenizer that holds each of `words`, after a space, as one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys((*_prose_pieces(), *(_SPACE + word for word in words)))
    vocabulary = [(special, 0.0) for special in SPECIALS]
    vocabulary += [(byte, _BYTE_SCORE) for byte in alphabet]
    vocabulary += [(piece, _PIECE_SCORE) for piece in pieces if piece not in (*alphabet, " ")]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers leaves it so
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def write_questions(path: Path, questions: Mapping[str, str]) -> None:
    """Write closed questions as a JSON list of `{"question", "answer"}`."""
    pairs = [{"question": q, "answer": a} for q, a in questions.items()]
    path.write_text(json.dumps(pairs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
