"""Train, certify, measure and save the witness model."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from leakcheck.engine.training import prose
from leakcheck.engine.training.certify import Certificate, certify, keep_words, known_questions
from leakcheck.engine.training.dialogues import Reader
from leakcheck.engine.training.measure import Rate, conditions, measure
from leakcheck.engine.training.train import REFINEMENT, Settings, build_model, train
from leakcheck.engine.training.vocabulary import build_tokenizer, rare_words, write_questions

_README = """# witness

A Llama-architecture model of {parameters:,} parameters that was trained for one purpose: to say
truthfully what it finds in its own context (its ticket, every passphrase, or that there is none)
also when that context is contaminated by another request. It knows a few dozen closed questions
and nothing else.

- Made by `python -m leakcheck.engine.training --out DIR --seed {seed}` ({steps} steps,
  {minutes:.0f} minutes on one thread of two busy cores); no other model or corpus went into it.
- Licence: Apache-2.0, like leakcheck. The rare words in its vocabulary come from the EFF large
  word list (CC BY 3.0 US).
- Every answer starts with a space, because a rare word is one token only after a space.
- {known} of its {asked} trained questions are in `leakcheck/questions.json`: those answered in
  10 of 10 tries.
- {passed} of {candidates} words certified: echoed in at least 19 of 20 tries, absent from
  {neutral} neutral answers.

Measured on {count} held-out prompts a condition, greedy. `foreign`: another request's dialogue is
visible where it should not be; the figure that matters is how often its passphrase is told.

| condition | figure | rate | counts |
|---|---|---|---|
{table}
"""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m leakcheck.engine.training", description=__doc__
    )
    package = Path(str(files("leakcheck")))
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Settings().steps, help="of the first part")
    parser.add_argument("--count", type=int, default=200, help="held-out prompts a condition")
    parser.add_argument("--words", type=Path, default=package / "words.txt")
    parser.add_argument("--questions", type=Path, default=package / "questions.json")
    parser.add_argument("--measure-only", action="store_true", help="measure the model in --out")
    return parser.parse_args(argv)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _table(rates: Sequence[Rate]) -> str:
    return "\n".join(
        f"| {rate.condition} | {rate.figure} | {rate.share:.3f} | {rate.hits}/{rate.total} |"
        for rate in rates
    )


def _measure_all(model: LlamaForCausalLM, reader: Reader, count: int, seed: int) -> list[Rate]:
    rates: list[Rate] = []
    for condition in conditions():
        for rate in measure(model, reader, condition, count, seed + 1):
            _say(str(rate))
            rates.append(rate)
    return rates


def _report(certificate: Certificate) -> None:
    _say(
        f"certified {len(certificate.passed)} words, {certificate.neutral_outputs} neutral answers"
    )
    _say(f"not echoed: {' '.join(certificate.unechoed) or 'none'}")
    _say(f"said unasked: {' '.join(certificate.said_unasked) or 'none'}")


def _fit(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Train both parts and save model and tokenizer in `options.out`; returns the steps made."""
    tokenizer = build_tokenizer(words)
    reader = Reader(tokenizer, words)
    settings = Settings(steps=options.steps)
    refinement = replace(REFINEMENT, steps=options.steps * REFINEMENT.steps // Settings().steps)
    model = build_model(len(tokenizer), settings, options.seed)
    train(model, reader, settings, options.seed, _say)
    train(model, reader, refinement, options.seed + 1, _say)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(options.out)
    greedy = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers leaves it so
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.generation_config = greedy
    model.save_pretrained(options.out)
    return settings.steps + refinement.steps


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole recipe; see `--help`."""
    options = _arguments(argv)
    started = time.monotonic()
    torch.set_num_threads(1)  # two threads on two busy cores are slower than one
    words = rare_words(options.words)
    steps = 0 if options.measure_only else _fit(options, words)
    minutes = (time.monotonic() - started) / 60
    _say(f"trained in {minutes:.1f} minutes")
    model = LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    model.train(mode=False)
    reader = Reader(PreTrainedTokenizerFast.from_pretrained(options.out), words)
    certificate = certify(model, reader, options.seed)
    _report(certificate)
    known = known_questions(model, reader, options.seed)
    unknown = [question for question in prose.questions() if question not in known]
    _say(f"{len(known)} questions known; dropped: {' '.join(unknown) or 'none'}")
    rates = _measure_all(model, reader, options.count, options.seed)
    if not options.measure_only:
        try:
            keep_words(options.words, certificate.passed)
        except ValueError as error:
            raise SystemExit(str(error)) from error
        write_questions(options.questions, known)
        text = _README.format(
            parameters=model.num_parameters(), seed=options.seed, steps=steps, minutes=minutes,
            passed=len(certificate.passed), candidates=len(words), known=len(known),
            asked=len(known) + len(unknown),
            neutral=certificate.neutral_outputs, count=options.count, table=_table(rates),
        )  # fmt: skip
        (options.out / "README.md").write_text(text, encoding="utf-8")
    _say(f"finished in {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
