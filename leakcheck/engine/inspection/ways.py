"""The computations that must all give what one forward pass gives, each under a `Watch`.

Every way runs the same known tokens: the first `prompt` of them at once or in chunks, the rest one
by one, as generation does. Nothing is sampled, so a difference cannot hide behind another token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, StaticCache

from leakcheck.engine.cache import PagedLayer
from leakcheck.engine.engine import Engine
from leakcheck.engine.inspection.passes import (
    Slice,
    Watch,
    cache_argument,
    fresh_cache,
    watched,
)
from leakcheck.engine.models import layer_shapes
from leakcheck.engine.rows import Batch
from leakcheck.engine.sampling import Pick
from leakcheck.engine.sequence import Sequence
from leakcheck.engine.values import EngineOptions, GenerateRequest, SamplingParams

OWN = "watched"
COMPANIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`tokens` to run, of which the first `prompt` are there from the start; blocks of `block`."""

    model: Any
    tokenizer: Any
    tokens: tuple[int, ...]
    prompt: int
    block: int
    seed: int = 0

    @property
    def ids(self) -> torch.Tensor:
        """[1, tokens]."""
        return torch.tensor([self.tokens], device=self.model.device)

    def strangers(self, count: int) -> list[int]:
        """Other tokens, by the seed and how many are wanted."""
        vocabulary = self.model.config.get_text_config().vocab_size
        numbers = Random(f"{self.seed}/{count}")
        return [numbers.randrange(vocabulary) for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One computation by name."""

    name: str
    run: Callable[[Job, Watch], None]


def ways(model: Any) -> list[Way]:
    """What can be compared for this model; sliding windows add a cache that keeps everything."""
    chosen = [
        Way(name="DynamicCache", run=dynamic),
        Way(name="StaticCache", run=static),
        Way(name="left-padded batch", run=left_padded),
        Way(name="chunked prefill", run=chunked),
        Way(name="paged engine", run=paged),
    ]
    if any(getattr(layer, "is_sliding", False) for layer in fresh_cache(model).layers):
        chosen.insert(2, Way(name="cache without window", run=unwindowed))
    return chosen


def dynamic(job: Job, watch: Watch) -> None:
    """A growing cache; sliding layers keep their window only."""
    one_by_one(job, watch, fresh_cache(job.model), [job.prompt])


def static(job: Job, watch: Watch) -> None:
    """Buffers of the final length from the start."""
    cache = StaticCache(config=job.model.config, max_cache_len=len(job.tokens))
    one_by_one(job, watch, cache, [job.prompt])


def unwindowed(job: Job, watch: Watch) -> None:
    """A cache that keeps every position; only the mask makes the window."""
    plain: Any = DynamicLayer
    layers = [plain() for _ in fresh_cache(job.model).layers]
    one_by_one(job, watch, Cache(layers=layers), [job.prompt])


def chunked(job: Job, watch: Watch) -> None:
    """The prompt in uneven chunks."""
    sizes, left, numbers = [], job.prompt, Random(job.seed)
    while left:
        sizes.append(min(left, numbers.randint(1, max(1, job.prompt // 3))))
        left -= sizes[-1]
    one_by_one(job, watch, fresh_cache(job.model), sizes)


@torch.inference_mode()
def one_by_one(job: Job, watch: Watch, cache: Cache, sizes: list[int]) -> None:
    """Chunks of these sizes, then single tokens; the model finds positions by itself."""
    start = 0
    with watched(cache, watch):
        for size in [*sizes, *[1] * (len(job.tokens) - job.prompt)]:
            watch.begin_step([Slice(row=0, start=start, count=size)])
            part = job.ids[:, start : start + size]
            output = job.model(input_ids=part, use_cache=True, **{cache_argument(job.model): cache})
            watch.note_logits(start, output.logits[0])
            start += size


@torch.inference_mode()
def left_padded(job: Job, watch: Watch) -> None:
    """Row 0 of two, padded on the left to the length of a longer stranger."""
    pads = max(1, job.prompt // 2)
    total = pads + len(job.tokens)
    own = torch.cat([torch.zeros(pads, dtype=torch.long, device=job.model.device), job.ids[0]])
    other = torch.tensor(job.strangers(total), device=job.model.device)
    rows = torch.stack([own, other])
    mask = torch.ones_like(rows)
    mask[0, :pads] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache, start = fresh_cache(job.model), 0
    with watched(cache, watch, pads=pads):
        for size in [pads + job.prompt, *[1] * (len(job.tokens) - job.prompt)]:
            end, first = start + size, max(start, pads)
            watch.begin_step([Slice(row=0, start=first - pads, count=end - first)], pads)
            output = job.model(
                input_ids=rows[:, start:end],
                attention_mask=mask[:, :end],
                position_ids=positions[:, start:end],
                use_cache=True,
                **{cache_argument(job.model): cache},
            )
            watch.note_logits(first - pads, output.logits[0, first - start :])
            start = end


def paged(job: Job, watch: Watch) -> None:
    """In the embedded engine, among strangers, with chunked prefill and a shared prefix.

    EngineError when the engine refuses the model.
    """
    shapes = layer_shapes(job.model)
    needed = (COMPANIONS + 2) * (2 * len(job.tokens) // job.block + 2)
    options = EngineOptions(num_blocks=needed, block_size=job.block, step_tokens=24, seed=job.seed)
    engine = Engine(job.model, job.tokenizer, shapes, options)
    scripts: dict[str, list[int]] = {}
    watch_engine(engine, watch, scripts)
    shared = job.tokens[: job.prompt // 2]
    submit(engine, scripts, "sharer", [*shared, *job.strangers(5)], len(shared) + 3)
    drain(engine)
    submit(engine, scripts, OWN, list(job.tokens[:-1]), job.prompt)
    for number in range(COMPANIONS):
        length = max(2, (len(job.tokens) - 1) * (number + 1) // COMPANIONS)
        submit(engine, scripts, f"stranger {number}", job.strangers(length), max(1, length // 2))
    drain(engine)


def submit(
    engine: Engine, scripts: dict[str, list[int]], name: str, tokens: list[int], prompt: int
) -> None:
    """A request that will say what the script holds after the prompt, and one token more."""
    scripts[name] = [*tokens, 0]  # what it says last is never computed
    params = SamplingParams(max_tokens=len(tokens) - prompt + 1, ignore_eos=True)
    engine.submit(GenerateRequest(id=name, prompt=tuple(tokens[:prompt]), params=params))


def drain(engine: Engine) -> None:
    """Until every request has ended."""
    while engine.has_work:
        engine.step()


def watch_engine(engine: Engine, watch: Watch, scripts: dict[str, list[int]]) -> None:
    """Note what concerns the watched request; every request's tokens come from its script."""
    original_begin = engine.cache.begin

    def begin(batch: Batch | None) -> None:
        original_begin(batch)
        slices = [
            Slice(row=index, start=row.start, count=row.count)
            for index, row in enumerate(batch.rows if batch else ())
            if row.sequence.request.id == OWN
        ]
        watch.begin_step(slices) if slices else watch.idle()

    def sample(sequences: list[Sequence], logits: torch.Tensor) -> list[Pick]:
        for row, sequence in enumerate(sequences):
            if sequence.request.id == OWN:
                watch.note_logits(len(sequence.tokens) - 1, logits[row : row + 1])
        return [Pick(token=scripts[its.request.id][len(its.tokens)]) for its in sequences]

    engine.cache.begin = begin  # type: ignore[method-assign] # this one engine is ours to watch
    engine.sampler.sample = sample  # type: ignore[method-assign] # as above
    for number, layer in enumerate(engine.cache.paged_layers):
        watch_paged_layer(layer, number, watch)


def watch_paged_layer(layer: PagedLayer, number: int, watch: Watch) -> None:
    """Wrap one paged layer's `update`: a row is a slice of a sequence, right-aligned."""
    original = layer.update

    def update(
        keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        held_keys, held_values = original(keys, values, *rest, **named)
        for index, row in enumerate(layer.batch.rows if layer.batch else ()):
            if row.sequence.request.id != OWN:
                continue
            own = slice(keys.shape[2] - row.count, None)
            watch.note_computed(number, row.start, keys[index, :, own], values[index, :, own])
            watch.note_held(
                number, 0, held_keys[index, :, : row.end], held_values[index, :, : row.end]
            )
        return held_keys, held_values

    layer.update = update  # type: ignore[method-assign, assignment] # as above
