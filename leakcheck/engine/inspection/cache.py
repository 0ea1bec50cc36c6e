"""`inspect cache MODEL`: whether generation with a cache computes what it does without one."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console

from leakcheck.engine.inspection import screen, timing
from leakcheck.engine.inspection.bounds import Bounds
from leakcheck.engine.inspection.compare import (
    SHORTEST,
    Finding,
    Outcome,
    Setting,
    compare_all,
    lengths_up_to,
)
from leakcheck.engine.inspection.owntext import own_text
from leakcheck.engine.inspection.passes import Pass, fresh_cache, run_whole
from leakcheck.engine.inspection.specimens import DTYPES, SPECIMENS, obtain
from leakcheck.engine.inspection.terminal import require_number
from leakcheck.engine.inspection.ways import ways
from leakcheck.engine.values import EngineError

SPEED_LENGTHS = (16, 64, 256)
MANY = 100
BLOCK_MAX = 4096


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    names = ", ".join(SPECIMENS)
    parser.add_argument("model", help=f"witness, smollm2-135m, a folder, a hub id, {names}")
    parser.add_argument("--tokens", type=int, default=64, help="the longest sequence (64)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: as the model is loaded")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a block (16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=5, help="for timing single steps; 0: no timing (5)"
    )


def main(given: argparse.Namespace) -> int:
    """Compare and print; 1 when a difference looks like contamination."""
    if given.tokens < SHORTEST:
        raise EngineError(f"--tokens must be at least {SHORTEST}, not {given.tokens}")
    require_number("--block-size", given.block_size, 1, BLOCK_MAX)
    require_number("--seconds", given.seconds, 0)
    model, tokenizer = obtain(given.model, given.dtype, seed=given.seed)
    return inspect_model(model, tokenizer, given, screen.console())


def inspect_model(model: Any, tokenizer: Any, given: argparse.Namespace, console: Console) -> int:
    """All of the screen for one loaded model."""
    text = own_text(given.model, model, tokenizer, given.tokens, rows=1, seed=given.seed)
    setting = Setting(
        model=model,
        tokenizer=tokenizer,
        text=tuple(text[0].tolist()),
        lengths=lengths_up_to(given.tokens),
        block=given.block_size,
        seed=given.seed,
    )
    console.print(heading(given, model))
    reference, chosen = run_whole(model, setting.text), ways(model)
    runs = len(chosen) * len(setting.lengths)
    with screen.progress() as bar:
        task = bar.add_task("comparing", total=runs)
        outcomes, bounds = compare_all(setting, chosen, lambda: bar.advance(task))
    print_layers(console, model, reference, bounds)
    print_outcomes(console, outcomes, bounds)
    print_findings(console, outcomes, given.block_size)
    if given.seconds > 0:
        print_timing(console, model, text, given.seconds)
    findings = [its.finding for its in outcomes if its.finding is not None]
    wrong = any(its.contamination for its in findings)
    console.print(f"\n{summary(outcomes, model, wrong=wrong)}")
    return int(wrong)


def heading(given: argparse.Namespace, model: Any) -> str:
    """What is looked at."""
    config = model.config.get_text_config()
    queries = getattr(config, "num_attention_heads", "?")
    attention = config._attn_implementation  # noqa: SLF001 # its only name
    return (
        f"inspect cache {given.model}: {config.model_type}, {dtype_name(model)} on"
        f" {model.device.type}, {config.num_hidden_layers} layers, {queries} query"
        f" heads, {attention} attention\n"
        f"{given.tokens} tokens of its own kind of text (seed {given.seed}): half as the prompt,"
        f" half one by one\nlengths: {', '.join(map(str, lengths_up_to(given.tokens)))}\n"
    )


def dtype_name(model: Any) -> str:
    """`bfloat16`."""
    return str(model.dtype).removeprefix("torch.")


def print_layers(console: Console, model: Any, reference: Pass, bounds: Bounds) -> None:
    """Shapes, means and deviations of keys and values, and how far rounding may move them."""
    rows = []
    for number, layer in enumerate(fresh_cache(model).layers):
        keys, values = reference.keys[number], reference.values[number]
        rows.append(
            (
                str(number),
                " x ".join(map(str, keys.shape)),
                " x ".join(map(str, values.shape)),
                f"{float(keys.mean()):+.3f}",
                f"{float(keys.std()):.3f}",
                f"{float(values.mean()):+.3f}",
                f"{float(values.std()):.3f}",
                str(getattr(layer, "sliding_window", "all")),
                f"{bounds.layers[number]:.1e}",
            )
        )
    headings = (
        ">layer", ">K", ">V", ">K mean", ">K sd", ">V mean", ">V sd",
        ">sees tokens", ">bound",
    )  # fmt: skip
    screen.show(console, screen.table(headings, rows))
    console.print(
        "K, V: heads x tokens x head size. bound: relative error of keys and values, 5 x 99.9 %"
        " quantile over equivalent computations without a cache\n"
    )


def print_outcomes(console: Console, outcomes: list[Outcome], bounds: Bounds) -> None:
    """One line a way."""
    rows, refusals = [], []
    for its in outcomes:
        if its.refusal is not None:
            rows.append((its.way, "", "", "", "", "", "does not run"))
            refusals.append(f"{its.way}: {its.refusal}")
            continue
        rows.append(
            (
                its.way,
                f"{its.longest}",
                f"{its.error:.1e}",
                f"{its.of_bound:.2f}" if its.of_bound < MANY else f"{its.of_bound:.0e}",
                f"{its.gap:.1e}",
                f"{its.divergence:.1e}",
                verdict(its.finding),
            )
        )
    headings = (
        "way", ">to tokens", ">rel. error", ">of bound",
        ">log-odds, nats", ">KL, nats", "verdict",
    )  # fmt: skip
    screen.show(console, screen.table(headings, rows))
    console.print(f"bounds of logits: log-odds {bounds.gap:.1e}, KL {bounds.divergence:.1e} nats")
    for refusal in refusals:
        console.print(refusal)


def verdict(finding: Finding | None) -> str:
    """One or two words."""
    if finding is None:
        return "same"
    return "numerics" if finding.only_rounding else finding.diagnosis.cause.upper()


def print_findings(console: Console, outcomes: list[Outcome], block: int) -> None:
    """The first difference of each kind in full, others like it in a line."""
    seen: set[tuple[str, int]] = set()
    for outcome in outcomes:
        if outcome.finding is None:
            continue
        its = outcome.finding.diagnosis
        if (its.cause, its.layer) not in seen:
            print_finding(console, outcome.way, outcome.finding, block)
        else:
            console.print(
                f"\nlikewise {outcome.way}, at {outcome.finding.tokens} tokens: {its.cause} in"
                f" layer {its.layer}, first seen when token {its.newest} was computed"
            )
        seen.add((its.cause, its.layer))


def print_finding(console: Console, way: str, finding: Finding, block: int) -> None:
    """Where it entered, what it looks like, where attention went."""
    its, moved = finding.diagnosis, finding.shift
    step = "the prefill" if its.step == 0 else f"step {its.step}"
    kind = "query" if its.cause == "mask" else "KV"
    heads = f"{kind} {screen.several(its.heads)}" if its.heads else "not told apart"
    blocks = (
        f"{screen.several(its.blocks)} (tokens {its.blocks[0] * block}-"
        f"{(its.blocks[-1] + 1) * block - 1})"
        if its.blocks
        else "not told apart"
    )
    rows = [
        ("first step", f"{step}, which computes token {its.newest}; first position {its.position}"),
        ("layer", str(its.layer)),
        ("heads", heads),
        ("blocks", blocks),
        ("likely cause", f"{its.cause}: {its.sentence}"),
    ]
    if finding.only_rounding:
        rows.append(("but", "the same computation in float32 shows no difference: rounding"))
    console.print()
    screen.show(
        console,
        screen.table(("", ""), rows, title=f"DIFFERENCE: {way}, at {finding.tokens} tokens"),
    )
    if moved is None:
        console.print("attention: no weight of this layer moved, or its weights cannot be seen")
        return
    console.print(
        f"\nattention of token {moved.query}, layer {moved.layer}, query head {moved.head}"
        f" ({100 * moved.distance:.1f} % of it moved):"
    )
    shares = [
        (f"{share.first}-{share.last}", percent(share.before), percent(share.after),
         f"{100 * (share.after - share.before):+.1f} points")
        for share in moved.shares
    ]  # fmt: skip
    shares.append(("not its own", percent(0), percent(moved.outside), ""))
    screen.show(console, screen.table((">positions", ">without cache", ">here", ">shift"), shares))
    if moved.hidden:
        console.print(f"positions not seen at all here: {screen.several(moved.hidden)}")


def percent(share: float) -> str:
    """`12.3 %`."""
    return f"{100 * share:.1f} %"


def print_timing(console: Console, model: Any, text: torch.Tensor, seconds: float) -> None:
    """Speed against length, and percentiles of one step."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    lengths = [length for length in SPEED_LENGTHS if not limit or length < limit]
    repeats = -(-(max(lengths) + 1) // text.shape[1])
    longer = text.repeat(1, repeats)
    rows = [
        (
            str(its.length),
            screen.milliseconds(its.cached_s),
            screen.milliseconds(its.uncached_s),
            f"{its.uncached_s / its.cached_s:.1f} x",
        )
        for its in timing.speeds(model, longer, lengths)
    ]
    headings = (">after tokens", ">next token, cached", ">without cache", ">ratio")
    console.print()
    screen.show(console, screen.table(headings, rows))
    its = timing.latency(model, longer, min(lengths), seconds)
    note = "" if its.steps >= timing.STEPS else " (so p99.9 is the slowest one)"
    console.print(
        f"one cached step after {its.length} tokens: p50 {screen.milliseconds(its.p50_s)}, p99"
        f" {screen.milliseconds(its.p99_s)}, p99.9 {screen.milliseconds(its.p999_s)};"
        f" {its.steps} steps{note}"
    )


def summary(outcomes: list[Outcome], model: Any, *, wrong: bool) -> str:
    """The last line."""
    ran = [its for its in outcomes if its.refusal is None]
    differ = [its for its in ran if its.finding is not None]
    if wrong:
        names = ", ".join(its.way for its in differ if its.finding and its.finding.contamination)
        return f"DIFFERENT: {names}. Another computation is not the one the model defines."
    rest = (
        f"\n{dtype_name(model)} hides what is smaller than its rounding: --dtype float32 sees more."
        if model.dtype != torch.float32
        else ""
    )
    if differ:
        return (
            f"{len(differ)} of {len(ran)} ways differ by arithmetic only: no contamination.{rest}"
        )
    return f"SAME: {len(ran)} of {len(ran)} ways compute what one pass without a cache does.{rest}"
