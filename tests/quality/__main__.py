"""Try every claim in its long form and write the table: `python -m quality --out docs/quality.md`.

The table is written again after every figure, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from quality import claims, table
from quality.values import Claim, Effort, Result

PROCESSES = 2
SEED = 20_26


def main() -> int:
    """0 if every claim holds, 1 if one does not."""
    asked = _parser().parse_args()
    results: list[Result] = []
    for result in _tried(asked):
        _say(table.line(result))
        results.append(result)
        _write(asked.out, results, asked.seed, done=False)
    _write(asked.out, results, asked.seed, done=not asked.only)
    missed = [each.number for each in results if each.holds is False]
    _say(f"does not hold: {', '.join(missed)}" if missed else "everything holds")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quality", description=__doc__)
    parser.add_argument("--out", type=Path, help="the table, as Markdown")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--short", action="store_true", help="as little as the tests do")
    parser.add_argument("--only", action="append", default=[], metavar="FILE.FUNCTION")
    parser.add_argument("--no-target", action="store_true", help="nothing end to end")
    return parser


def _tried(asked: argparse.Namespace) -> Iterator[Result]:
    effort = Effort(long=not asked.short)
    chosen = [each for each in claims.SIMULATED if not asked.only or _named(each, asked.only)]
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        running = [
            pool.submit(claims.try_one, claims.name_of(each), effort, asked.seed) for each in chosen
        ]
        for each in as_completed(running):
            yield each.result()


def _named(claim: Claim, asked: list[str]) -> bool:
    return any(claims.name_of(claim).startswith(each) for each in asked)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _write(out: Path | None, results: list[Result], seed: int, *, done: bool) -> None:
    if out is not None:
        rows = sorted(results, key=claims.order)
        out.write_text(table.render(rows, seed=seed, done=done), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
