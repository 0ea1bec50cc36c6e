"""What looks like trouble and is no leak: noise, delay, refusal, invention, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from leakcheck.engine.faults.fault import Fault, Seams, patch
from leakcheck.engine.values import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request
    from torch import Tensor

    from leakcheck.engine.engine import Engine
    from leakcheck.engine.rows import Batch
    from leakcheck.engine.sequence import Sequence
    from leakcheck.engine.server import Api

NOISE_QUANTA = 48.0
"""Largest error of a logit, in steps of bfloat16 at its size. One step flips nothing in the witness
model, whose margins are wide: this many change about a quarter of its answers and few tickets."""
BFLOAT16_BITS = 7
INT8_MAX = 127
WAIT_S, WAIT_MAX_S = 0.15, 0.8
STEP_S, STEP_MAX_S = 0.003, 0.03
FORCED = 1e4
"""Added to the logit of a token that shall be said."""
INVENTED_WORDS = 6
SHORTEST_WORD = 4
REFUSAL = " I am sorry, but I can not help with that."
REQUESTS_A_LIFE = 100
DOWN_S = 0.25
REQUESTS_PER_S, BURST = 24.0, 12.0


# --- numbers that differ -------------------------------------------------------------------------


def batch_noise(seams: Seams, _rate: float, _rng: Random) -> None:
    """Logits err by about a rounding of bfloat16, by the shape of the batch and the row in it."""
    import torch  # noqa: PLC0415 # the table of faults must not wait for it

    def wrap_forward(original: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
        def forward(batch: Batch) -> Tensor:
            logits = original(batch)
            shape = (*batch.input_ids.shape, *batch.table.shape)
            numbers = torch.Generator().manual_seed(crc32(repr(shape).encode()))
            noise = torch.rand(logits.shape, generator=numbers).to(logits.device) * 2 - 1
            exponent = torch.frexp(logits).exponent - 1 - BFLOAT16_BITS
            return logits + NOISE_QUANTA * torch.ldexp(noise, exponent)

        return forward

    patch(seams.engine, "forward", wrap_forward)


def kv_quant_int8(seams: Seams, _rate: float, _rng: Random) -> None:
    """Keys and values are rounded to int8 when written, with a scale a head and position."""

    def wrap_write(original: Callable[..., None]) -> Callable[..., None]:
        def write(store: Tensor, states: Tensor, batch: Batch) -> None:
            scale = states.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / INT8_MAX
            original(store, (states / scale).round() * scale, batch)

        return write

    for layer in seams.engine.cache.paged_layers:
        patch(layer, "write", wrap_write)


# --- a model that says what nobody asked for -----------------------------------------------------


def say(engine: Engine, next_token: Callable[[Sequence, int], int | None]) -> None:
    """Make the model say `next_token(sequence, its own choice)`; None: its own choice."""

    def wrap_shape(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def shape(sequences: list[Sequence], params: list[Any], logits: Tensor) -> Tensor:
            shaped = original(sequences, params, logits)
            own = shaped.argmax(dim=-1).tolist()
            forced = [next_token(*each) for each in zip(sequences, own, strict=True)]
            if any(token is not None for token in forced):
                shaped = shaped.clone()  # the raw logits are still to be reported
            for row, token in enumerate(forced):
                if token is not None:
                    shaped[row, token] += FORCED
            return shaped

        return shape

    patch(engine.sampler, "shape", wrap_shape)


def token_at(engine: Engine, script: tuple[int, ...], place: int) -> int | None:
    """The script's token at this place; after its end the end of the answer, where there is one."""
    if place < len(script):
        return script[place]
    return min(engine.eos_tokens, default=None)


def parrot(seams: Seams, rate: float, rng: Random) -> None:
    """Some answers are, or end with, six random words presented as a passphrase."""
    engine = seams.engine
    words = vocabulary_words(engine)
    seed = rng.random()

    @lru_cache(maxsize=1024)
    def invention(order: tuple[int, int]) -> tuple[bool, tuple[int, ...]]:
        own = Random(f"{seed} {order}")
        if own.random() >= rate:
            return False, ()
        phrase = " ".join(own.sample(words, INVENTED_WORDS))
        text = f" Passphrase: {phrase}."
        encoded = engine.text_tokenizer.encode(text, add_special_tokens=False).ids
        return own.random() < 0.5, tuple(encoded)  # noqa: PLR2004 # half and half

    def next_token(sequence: Sequence, own: int) -> int | None:
        instead, script = invention(sequence.order)
        if not script:
            return None
        if instead:
            return token_at(engine, script, sequence.generated)
        said = overlap(sequence.output, script)
        if said or own in engine.eos_tokens:
            return token_at(engine, script, said)
        return None

    say(engine, next_token)


def overlap(output: list[int], script: tuple[int, ...]) -> int:
    """How many of the script's first tokens the output ends with."""
    for size in range(min(len(output), len(script)), 0, -1):
        if tuple(output[-size:]) == script[:size]:
            return size
    return 0


def vocabulary_words(engine: Engine) -> list[str]:
    """Whole words of the tokenizer's vocabulary; of any tokens where there are too few."""
    forms = sorted(engine.text_tokenizer.get_vocab())
    whole = [form[1:] for form in forms if form[:1] in {"Ġ", "▁"}]
    words = [its for its in whole if len(its) >= SHORTEST_WORD and its.isalpha() and its.islower()]
    if len(words) >= INVENTED_WORDS:
        return words
    return [form for form in forms if form.isalnum()]


def mute(seams: Seams, _rate: float, _rng: Random) -> None:
    """Every answer is the same polite refusal."""
    engine = seams.engine
    script = tuple(engine.text_tokenizer.encode(REFUSAL, add_special_tokens=False).ids)
    say(engine, lambda sequence, _: token_at(engine, script, sequence.generated))


# --- a server in trouble -------------------------------------------------------------------------


def guard(seams: Seams, before: Callable[[], Any]) -> None:
    """Await `before` ahead of every POST; what it returns, if anything, is the response."""
    if seams.api is None:
        raise ValueError("this fault needs a server: Seams(api=...)")

    def wrap_respond(original: Callable[..., Any]) -> Callable[..., Any]:
        async def respond(endpoint: Any, request: Request) -> Any:
            early = await before() if request.method == "POST" else None
            return early if early is not None else await original(endpoint, request)

        return respond

    patch(seams.api, "respond", wrap_respond)


def slow(seams: Seams, _rate: float, rng: Random) -> None:
    """Requests wait before they are served, and steps take longer, both at random."""
    steps = Random(rng.random())  # the engine's thread draws from its own

    async def wait() -> None:
        await asyncio.sleep(min(rng.expovariate(1 / WAIT_S), WAIT_MAX_S))

    def wrap_step(original: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> Any:
            time.sleep(min(steps.expovariate(1 / STEP_S), STEP_MAX_S))
            return original()

        return step

    patch(seams.engine, "step", wrap_step)
    guard(seams, wait)


class Lives:
    """Counts requests; after so many of them the server dies and is away for a moment."""

    def __init__(self, api: Api) -> None:
        """The first life begins."""
        self.api = api
        self.requests = self.restarts = 0
        self._down_until_s = 0.0

    async def before(self) -> None:
        """RequestError 503 while the server is away."""
        self.requests += 1
        if self.requests % REQUESTS_A_LIFE == 0:
            self.restart()
        if time.monotonic() < self._down_until_s:
            raise RequestError("the server is starting", status=503)

    def restart(self) -> None:
        """Cut every answer in flight and forget every cached block."""
        self.restarts += 1
        self._down_until_s = time.monotonic() + DOWN_S
        self.api.loop.abort_all()
        self.api.loop.between_steps(self.empty)

    def empty(self) -> None:
        """Give up all cached blocks."""
        while self.api.engine.pool.evict():
            pass


def restart(seams: Seams, _rate: float, _rng: Random) -> None:
    """The server restarts again and again."""
    if seams.api is None:
        raise ValueError("this fault needs a server: Seams(api=...)")
    guard(seams, Lives(seams.api).before)


class Bucket:
    """A token bucket: so many requests a second, and a few at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """It is full; `clock` gives seconds."""
        self._clock = clock
        self._level, self._at_s = BURST, clock()

    def take(self) -> bool:
        """Whether one more request may pass now."""
        now_s = self._clock()
        self._level = min(BURST, self._level + (now_s - self._at_s) * REQUESTS_PER_S)
        self._at_s = now_s
        if self._level < 1:
            return False
        self._level -= 1
        return True


def rate_limited(seams: Seams, _rate: float, _rng: Random) -> None:
    """Too many requests at a time get a 429 that says when to come again."""
    bucket = Bucket(time.monotonic)

    async def before() -> Any:
        from leakcheck.engine.answer import json_response  # noqa: PLC0415 # as torch
        from leakcheck.engine.protocol import error_body  # noqa: PLC0415 # as torch

        if bucket.take():
            return None
        body = error_body("too many requests", kind="rate_limit_error", param=None, code=None)
        response = json_response(body, 429)
        response.headers["retry-after"] = "1"
        return response

    guard(seams, before)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="batch-noise",
        layer="benign",
        mechanism=(
            f"Every logit errs by up to {NOISE_QUANTA:g} steps of bfloat16 at its size, by a"
            " pattern that depends on the shape of the batch and the row in it: what floating"
            " point does when another batch takes another kernel. The same batch errs in the"
            " same way; the cache is untouched."
        ),
        trigger="any batch; the same request errs differently alone and in company",
        effect="near-ties of two tokens flip: long greedy answers diverge, nobody's content moves",
        anomalies=(),
        strength="every step",
        seam="Engine.forward",
        cases=(
            "https://github.com/vllm-project/vllm/issues/39146",
            "https://github.com/vllm-project/vllm/issues/51187",
        ),
        rate=None,
        install=batch_noise,
    ),
    Fault(
        name="kv-quant-int8",
        layer="benign",
        mechanism=(
            "Keys and values are rounded to 8 bits when they are written, with one scale for"
            " each head and position: a legal, lossy cache. A token's rounding does not depend"
            " on anybody else."
        ),
        trigger="any request",
        effect="answers that differ from the unrounded model's, in the same way for everybody",
        anomalies=(),
        strength="every write",
        seam="PagedLayer.write",
        cases=(),
        rate=None,
        install=kv_quant_int8,
    ),
    Fault(
        name="slow",
        layer="benign",
        mechanism=(
            f"Requests wait up to {WAIT_MAX_S:g} s before they are served, as in a queue, and"
            f" every step of the engine takes up to {STEP_MAX_S * 1000:g} ms longer, both at"
            " random. Nothing else changes."
        ),
        trigger="any request",
        effect="late first tokens, jitter between tokens, requests that overlap differently",
        anomalies=(),
        strength="every request and step",
        seam="Api.respond and Engine.step",
        cases=(),
        rate=None,
        install=slow,
    ),
    Fault(
        name="parrot",
        layer="benign",
        mechanism=(
            "A model that invents: some answers consist of, or end with, six random words"
            " presented as a passphrase, drawn from the tokenizer's vocabulary, which holds"
            " the words of passphrases too. They come from no request."
        ),
        trigger="any request",
        effect="passphrase-like phrases that nobody owns; answers without their ticket",
        anomalies=(),
        strength="the share of answers, half of them replaced and half continued",
        seam="Sampler.shape",
        cases=("https://github.com/anthropics/claude-code/issues/30648",),
        rate=0.3,
        install=parrot,
    ),
    Fault(
        name="mute",
        layer="benign",
        mechanism=(
            "Every answer is the same polite refusal with status 200, as from a model behind"
            " a strict filter: nobody's content can show, so nothing can be concluded."
        ),
        trigger="any request",
        effect="no answer holds its ticket or passphrase: the run must be inconclusive",
        anomalies=(),
        strength="every answer",
        seam="Sampler.shape",
        cases=(),
        rate=None,
        install=mute,
    ),
    Fault(
        name="restart",
        layer="benign",
        mechanism=(
            f"With every {REQUESTS_A_LIFE}th request the server dies and comes back: answers"
            f" in flight are cut, the cache is empty, and for {DOWN_S:g} s every request gets a"
            " 503."
        ),
        trigger="more than a few dozen requests",
        effect="cut answers, refused requests, cold caches",
        anomalies=(),
        strength="one restart in so many requests",
        seam="Api.respond, EngineLoop.abort_all and between_steps",
        cases=(),
        rate=None,
        install=restart,
    ),
    Fault(
        name="rate-limited",
        layer="benign",
        mechanism=(
            f"A token bucket in front of the server lets {BURST:g} requests pass at once and"
            f" {REQUESTS_PER_S:g} a second; others get a 429 with Retry-After and were never"
            " generated."
        ),
        trigger="bursts",
        effect="refused requests that come again later",
        anomalies=(),
        strength="every request beyond the limit",
        seam="Api.respond",
        cases=(),
        rate=None,
        install=rate_limited,
    ),
)
