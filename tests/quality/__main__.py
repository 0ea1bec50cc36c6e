"""Try every claim in its long form and write the table: `python -m quality --out docs/quality.md`.

The table is written again after every figure, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from quality import claims, live, table
from quality.values import Effort, Result

PROCESSES = 2
SEED = 20_26


def main() -> int:
    """0 if every claim holds, 1 if one does not."""
    asked = _parser().parse_args()
    found = {each.number: each for each in _before(asked)}
    for result in _tried(asked):
        _say(table.line(result))
        found[result.number] = result
        _write(asked, found, done=False)
    _write(asked, found, done=True)
    missed = [each.number for each in _sorted(found) if each.holds is False]
    _say(f"does not hold: {', '.join(missed)}" if missed else "everything holds")
    return 1 if missed else 0


def _before(asked: argparse.Namespace) -> list[Result]:
    """What is not tried again this time."""
    kept = asked.results if asked.only else None
    return table.load(kept.read_bytes()) if kept is not None and kept.exists() else []


def _sorted(found: dict[str, Result]) -> list[Result]:
    return sorted(found.values(), key=claims.order)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quality", description=__doc__)
    parser.add_argument("--out", type=Path, help="the table, as Markdown")
    parser.add_argument("--results", type=Path, help="the same as JSON; --only adds to it")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--short", action="store_true", help="as little as the tests do")
    parser.add_argument("--only", action="append", default=[], metavar="FILE.FUNCTION")
    parser.add_argument("--no-target", action="store_true", help="nothing end to end")
    parser.add_argument(
        "--target-time", type=float, default=1.0, metavar="SCALE", help="of what end to end takes"
    )
    return parser


def _tried(asked: argparse.Namespace) -> Iterator[Result]:
    effort = Effort(long=not asked.short)
    names = [claims.name_of(each) for each in claims.SIMULATED]
    chosen = [name for name in names if _wanted(name, asked.only)]
    groups = [each for each, _ in live.GROUPS if _wanted(f"live.{each.__name__}", asked.only)]
    if asked.short or asked.no_target:
        groups = []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        running: list[Future[list[Result]]] = [
            pool.submit(live.results, each.__name__, asked.seed, asked.target_time)
            for each in groups
        ]
        running += [pool.submit(claims.try_alone, name, effort, asked.seed) for name in chosen]
        for each in as_completed(running):
            yield from each.result()


def _wanted(name: str, only: list[str]) -> bool:
    return not only or any(name.startswith(each) for each in only)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _write(asked: argparse.Namespace, found: dict[str, Result], *, done: bool) -> None:
    if asked.results:
        asked.results.write_bytes(table.dump(_sorted(found)))
    if asked.out:
        page = table.render(_sorted(found), seed=asked.seed, done=done)
        asked.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
