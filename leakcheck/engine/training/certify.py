"""Which rare words may be part of a passphrase: the witness can echo them and never says them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from transformers import LlamaForCausalLM

from leakcheck.engine.training import phrasing, prose
from leakcheck.engine.training.contamination import Example
from leakcheck.engine.training.dialogues import Reader
from leakcheck.engine.training.measure import decode
from leakcheck.engine.training.vocabulary import ASSISTANT, END, USER, rare_words

ROUNDS, NEEDED, PER_PROMPT = 20, 19, 6
FEWEST_WORDS = 2048
QUESTION_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Words that passed, words that failed, and how much was tried."""

    passed: Sequence[str]
    unechoed: Sequence[str]
    said_unasked: Sequence[str]
    neutral_outputs: int


def _prompt(reader: Reader, message: str) -> Example:
    ids = reader.encode(f"{USER} {message}{END}{ASSISTANT}")
    return Example(ids=ids, positions=range(len(ids)), answer_start=len(ids))


def echoes(model: LlamaForCausalLM, reader: Reader, rng: Random) -> Counter[str]:
    """How often of `ROUNDS` tries each word came back at its place among six."""
    groups: list[list[str]] = []
    for _ in range(ROUNDS):
        words = rng.sample(reader.words, len(reader.words))
        words += words[: -len(words) % PER_PROMPT]  # fill the last prompt; the extra is not counted
        groups += [words[i : i + PER_PROMPT] for i in range(0, len(words), PER_PROMPT)]
    prompts = [_prompt(reader, phrasing.ECHO_ASKS[0].format(words=" ".join(g))) for g in groups]
    answers = decode(model, prompts, PER_PROMPT + 1, rows=128)
    right: Counter[str] = Counter()
    for group, answer in zip(groups, answers, strict=True):
        wanted = [reader.ids_of[word] for word in group]
        right.update(
            word
            for word, want, said in zip(group, wanted, answer, strict=False)
            if want == said and len(answer) == PER_PROMPT
        )
    return right


def neutral_answers(model: LlamaForCausalLM, reader: Reader, rng: Random) -> list[list[int]]:
    """Answers to prompts without a rare word: every question, every topic, and asks for nothing."""
    messages = list(prose.questions())
    messages += [f"{prose.sentence(rng)} {question}" for question in prose.questions()]
    messages += [phrasing.TOPIC_ASKS[0].format(topic=topic) for topic in prose.TOPICS]
    messages += [*phrasing.BOTH_ASKS, *phrasing.PASSPHRASE_ASKS, *phrasing.REMEMBER_ASKS]
    messages += [prose.sentence(rng) for _ in range(40)]
    return decode(model, [_prompt(reader, message) for message in messages], 100)


def known_questions(model: LlamaForCausalLM, reader: Reader, seed: int) -> Mapping[str, str]:
    """The closed questions answered rightly behind a ticket in all of `QUESTION_TRIES` tries."""
    rng = Random(f"questions {seed}")
    pairs = list(prose.questions().items()) * QUESTION_TRIES
    prompts = []
    for question, _ in pairs:
        filler = prose.plain_words(rng, rng.randint(1, 40))
        ticket = phrasing.TICKETS[0].format(words=" ".join(rng.sample(reader.words, PER_PROMPT)))
        ask = phrasing.QUESTION_ASKS[0].format(question=question)
        prompts.append(_prompt(reader, f"{filler} {ticket} {ask}"))
    right: Counter[str] = Counter()
    for (question, answer), said in zip(pairs, decode(model, prompts, 24), strict=True):
        right[question] += reader.text(said).endswith(f" Answer: {answer}.")
    return {q: a for q, a in prose.questions().items() if right[q] == QUESTION_TRIES}


def certify(model: LlamaForCausalLM, reader: Reader, seed: int) -> Certificate:
    """Echo every word twenty times and listen to more than a hundred neutral answers."""
    rng = Random(f"certify {seed}")
    right = echoes(model, reader, rng)
    answers = neutral_answers(model, reader, rng)
    said = {token for answer in answers for token in answer}
    return Certificate(
        passed=[w for w in reader.words if right[w] >= NEEDED and reader.ids_of[w] not in said],
        unechoed=[w for w in reader.words if right[w] < NEEDED],
        said_unasked=[w for w in reader.words if reader.ids_of[w] in said],
        neutral_outputs=len(answers),
    )


def keep_words(path: Path, passed: Sequence[str]) -> None:
    """Rewrite a word list with its header lines and only the words that passed.

    Raises:
        ValueError: fewer than 2048 words passed; the file is left as it was.
    """
    if len(passed) < FEWEST_WORDS:
        raise ValueError(
            f"only {len(passed)} of {len(rare_words(path))} words in {path} were certified, "
            f"at least {FEWEST_WORDS} are needed: train longer"
        )
    header = [x for x in path.read_text(encoding="utf-8").splitlines() if x.startswith("#")]
    path.write_text("\n".join([*header, *passed]) + "\n", encoding="utf-8")
