"""How fast the matcher is, as ratios of processor time within one run.

    python -m benchmarks.bench_match [--quick]

For 1e4 and 1e5 outputs and as many phrases: `match.find` against `str.lower()` of every output (a
pass over the text that does nothing useful), against ahocorasick_rs doing the same job (every
output folded to letters and digits), against ahocorasick_rs on outputs that are only lowered
(which misses what is spelled with other separators), and against itself at a tenth of the size. At
1e3 also against the naive double loop. Core time: building the index and folding count, compiling
does not. The hits must be the very same as those of the reference. Exits 1 if a goal is missed.

The corpus is generated from a seed: outputs of about 600 characters of common words; half of them
say their own passphrase of six words; one in a thousand (at least one) says somebody else's, in
random case and with random punctuation, one in ten of these glued into other letters.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation
from rich.console import Console
from rich.table import Table

from leakcheck import wording
from leakcheck.folding import ASCII_DROPPED, ASCII_LOWER
from leakcheck.match import FAST_FROM_LOADED, Hits, find, find_reference
from leakcheck.match.fast import find_fast
from leakcheck.passphrase import load_words

OUTPUT_CHARS = 600
SEED = 20261130


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Outputs, and the phrase that each output's own request carried."""

    outputs: list[str]
    phrases: list[str]
    planted: set[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio of two times, and the most it may be; None where it is only shown."""

    name: str
    over: float
    under: float
    most: float | None = None

    @property
    def ratio(self) -> float:
        """What is compared with the goal."""
        return self.over / self.under

    @property
    def missed(self) -> bool:
        """Whether the run must be called a failure."""
        return self.most is not None and self.ratio > self.most


def corpus(size: int, seed: int = SEED) -> Corpus:
    """The same for the same size and seed."""
    rng = random.Random(f"{seed}/{size}")
    words = load_words()
    phrases = [" ".join(rng.sample(words, 6)) for _ in range(size)]
    said = {i: i for i in range(0, size, 2)}
    foreign = rng.sample(range(size), max(1, size // 1000))
    planted = {(i, rng.randrange(size)) for i in foreign}
    outputs = []
    for index in range(size):
        text = prose(rng)
        if index in said:
            text = insert(text, f"My passphrase is {phrases[index]}.", 300)
        outputs.append(text)
    for number, (index, source) in enumerate(sorted(planted)):
        told = disguised(phrases[source], rng)
        outputs[index] = insert(outputs[index], f"xq{told}zz" if number % 10 == 0 else told, 100)
    return Corpus(outputs=outputs, phrases=phrases, planted=planted)


def prose(rng: random.Random) -> str:
    """About `OUTPUT_CHARS` characters of common words with some punctuation."""
    words = rng.choices(wording.WORDS, k=OUTPUT_CHARS // 5)
    text = " ".join(words)
    for mark in (". ", ", ", "\n", "; "):
        at = rng.randrange(len(text))
        text = text[:at].rstrip() + mark + text[at:].lstrip()
    return text[:OUTPUT_CHARS].capitalize()


def insert(text: str, piece: str, at: int) -> str:
    """The piece between words, in place of as many characters."""
    return f"{text[:at]} {piece} {text[at + len(piece) :]}"


def disguised(phrase: str, rng: random.Random) -> str:
    """The phrase in another case, with other separators."""
    case = rng.choice([str.upper, str.title, str.swapcase, str.lower])
    return rng.choice([" ", "-", "_", ", ", "\n", "* ", ""]).join(case(phrase).split())


def lower(data: Corpus) -> None:
    """The floor: one pass over every output."""
    for text in data.outputs:
        text.lower()


def automaton_folded(data: Corpus) -> int:
    """ahocorasick_rs on letters and digits: the same job, without offsets into the originals."""
    search = BytesAhoCorasick(
        [p.encode().translate(ASCII_LOWER, ASCII_DROPPED) for p in data.phrases],
        implementation=Implementation.ContiguousNFA,
    ).find_matches_as_indexes
    return sum(
        len(search(text.encode().translate(ASCII_LOWER, ASCII_DROPPED), overlapping=True))
        for text in data.outputs
    )


def automaton_plain(data: Corpus) -> int:
    """ahocorasick_rs on lowered text: an easier job that only finds the phrase as it was sent."""
    search = AhoCorasick(
        data.phrases, implementation=Implementation.ContiguousNFA
    ).find_matches_as_indexes
    return sum(len(search(text.lower(), overlapping=True)) for text in data.outputs)


def naive(data: Corpus) -> int:
    """Every phrase in every output, one by one, on letters and digits."""
    texts = [t.encode().translate(ASCII_LOWER, ASCII_DROPPED) for t in data.outputs]
    phrases = [p.encode().translate(ASCII_LOWER, ASCII_DROPPED) for p in data.phrases]
    return sum(phrase in text for text in texts for phrase in phrases)


def product(data: Corpus) -> Hits:
    """What leakcheck does."""
    return find(data.outputs, data.phrases)


def timed(job: Callable[[Corpus], object], data: Corpus) -> float:
    """Processor seconds of one call."""
    begin = time.process_time()
    job(data)
    return time.process_time() - begin


def interleaved(
    data: Corpus, jobs: Sequence[Callable[[Corpus], object]], times: int
) -> list[float]:
    """The median processor seconds of each job; they take turns, so all see the same machine."""
    seconds = [[timed(job, data) for job in jobs] for _ in range(times)]
    return [statistics.median(column) for column in zip(*seconds, strict=True)]


def rows(hits: Hits) -> list[tuple[int, ...]]:
    """Hits as plain tuples."""
    columns = (hits.text, hits.start, hits.end, hits.phrase, hits.exact)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def faults(data: Corpus) -> list[str]:
    """What is wrong with the product's hits; nothing, one hopes."""
    found, reference = rows(product(data)), rows(find_reference(data.outputs, data.phrases))
    pairs = {(text, phrase) for text, _, _, phrase, _ in found}
    expected = data.planted | {(i, i) for i in range(0, len(data.outputs), 2)}
    wrong = []
    if found != reference:
        wrong.append(f"{len(found)} hits, the reference has {len(reference)}, and not the same")
    if not data.planted <= pairs:
        wrong.append(f"{len(data.planted - pairs)} planted phrases were not found")
    if pairs - expected:
        wrong.append(f"{len(pairs - expected)} pairs were found that were not planted")
    return wrong


def measure(sizes: tuple[int, int], times: tuple[int, int], naive_size: int) -> list[Goal]:
    """All ratios; the goals apply to both sizes."""
    goals = []
    took = {}
    for size, repeats in zip(sizes, times, strict=True):
        print(f"{size} outputs x {size} phrases ...", file=sys.stderr, flush=True)
        data = corpus(size)
        for sentence in faults(data):
            raise SystemExit(f"{size} outputs: {sentence}")
        jobs = [product, lower, automaton_folded, automaton_plain]
        took[size], floor, folded, plain = interleaved(data, jobs, repeats)
        goals += [
            Goal(name=f"{size:.0e}: find / str.lower()", over=took[size], under=floor, most=15),
            Goal(name=f"{size:.0e}: find / ahocorasick_rs, same folding", over=took[size],
                 under=folded, most=0.4),
            Goal(name=f"{size:.0e}: find / ahocorasick_rs, lowered only", over=took[size],
                 under=plain, most=0.4),
        ]  # fmt: skip
    small, large = sizes
    name = f"find at {large:.0e} / at {small:.0e} (texts and phrases)"
    goals.append(Goal(name=name, over=took[large], under=took[small], most=1.3 * large / small))
    data = corpus(naive_size)
    ours, loop = interleaved(data, [product, naive], 1)
    goals.append(Goal(name=f"{naive_size:.0e}: naive double loop / find", over=loop, under=ours))
    return goals


def show(goals: Sequence[Goal], *, judged: bool) -> None:
    """A table with numerators and denominators."""
    table = Table(title="match.find, processor seconds (medians of interleaved runs)")
    for column in ("ratio of", "seconds", "/ seconds", "= ratio", "goal", ""):
        table.add_column(column, justify="left" if column == "ratio of" else "right")
    for goal in goals:
        verdict = "" if goal.most is None or not judged else "MISSED" if goal.missed else "met"
        most = "" if goal.most is None else f"<= {goal.most:g}"
        figures = (f"{goal.over:.4f}", f"{goal.under:.4f}", f"{goal.ratio:.3g}")
        table.add_row(goal.name, *figures, most, verdict)
    Console(width=110).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 0 when every goal is met, 1 otherwise (`--quick` judges the hits only)."""
    parser = argparse.ArgumentParser(description="Time the matcher against its alternatives.")
    parser.add_argument("--quick", action="store_true", help="a few seconds; times are not judged")
    quick = parser.parse_args(arguments).quick
    warm = ["a text to compile for", "one thät is not ASCII"]
    find_fast(warm, ["abcdefghijkl" * 3])
    sizes, times, naive_size = (
        ((200, 2000), (3, 3), 100) if quick else ((10**4, 10**5), (5, 3), 1000)
    )
    assert sizes[0] * OUTPUT_CHARS > FAST_FROM_LOADED  # noqa: S101 - else another path is timed
    goals = measure(sizes, times, naive_size)
    show(goals, judged=not quick)
    missed = [goal.name for goal in goals if goal.missed and not quick]
    if missed:
        print(f"missed: {'; '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
