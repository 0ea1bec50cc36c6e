"""Faults of the sampler: a row is sampled by parameters that are not its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from leakcheck.engine.sampling import Pick
    from leakcheck.engine.sequence import Sequence
    from leakcheck.engine.values import GenerateRequest, SamplingParams, Update

Params = Callable[["Sequence", "list[Sequence]"], "SamplingParams"]


def params_of_first(seams: Seams, _rate: float, _rng: Random) -> None:
    """Every row is sampled by the parameters of the first row of the batch."""

    def wrap(original: Params) -> Params:
        def params(sequence: Sequence, batch: list[Sequence]) -> SamplingParams:
            own, first = original(sequence, batch), original(batch[0], batch)
            return replace(first, logprobs=own.logprobs)

        return params

    patch(seams.engine.sampler, "params", wrap)


def params_of_first_request(seams: Seams, _rate: float, _rng: Random) -> None:
    """The heat of the first request ever serves all."""
    first: list[SamplingParams] = []

    def wrap(original: Params) -> Params:
        def params(sequence: Sequence, batch: list[Sequence]) -> SamplingParams:
            own = original(sequence, batch)
            if not first:
                first.append(own)
            return replace(own, temperature=first[0].temperature, top_p=first[0].top_p)

        return params

    patch(seams.engine.sampler, "params", wrap)


def stop_shared(seams: Seams, _rate: float, _rng: Random) -> None:
    """An answer ends at the stop strings of everybody it has been in the engine with."""
    engine = seams.engine

    def wrap(original: Callable[[Sequence, Pick], Update]) -> Callable[[Sequence, Pick], Update]:
        def advance(sequence: Sequence, pick: Pick) -> Update:
            everybody = [
                stop for family in engine.live.values() for stop in family[0].request.params.stop
            ]
            # None is ever taken away: text held back for a stop string must still come out.
            sequence.text.stop = tuple(dict.fromkeys([*sequence.text.stop, *everybody]))
            return original(sequence, pick)

        return advance

    patch(engine, "advance", wrap)


def seed_shared(seams: Seams, _rate: float, _rng: Random) -> None:
    """The seed of the request that found the engine idle serves all until it is idle again."""
    engine = seams.engine
    numbers: list[float] = []
    stream = Random(0)

    def wrap_submit(
        original: Callable[[GenerateRequest], None],
    ) -> Callable[[GenerateRequest], None]:
        def submit(request: GenerateRequest) -> None:
            if not engine.has_work:
                stream.setstate(engine.random(request, engine.arrivals, 0).getstate())
                numbers.clear()
            original(request)

        return submit

    def wrap_uniform(_: Callable[[Sequence], float]) -> Callable[[Sequence], float]:
        def uniform(sequence: Sequence) -> float:
            while len(numbers) <= sequence.generated:
                numbers.append(stream.random())
            return numbers[sequence.generated]

        return uniform

    patch(engine, "submit", wrap_submit)
    patch(engine.sampler, "uniform", wrap_uniform)


def bias_left_on_row(seams: Seams, _rate: float, _rng: Random) -> None:
    """A row keeps the logit_bias of whoever had it, until somebody brings another."""
    engine = seams.engine
    places: list[Sequence | None] = []
    biases: dict[int, tuple[tuple[int, float], ...]] = {}

    def place_of(sequence: Sequence) -> int:
        if sequence in places:
            return places.index(sequence)
        if None not in places:
            places.append(None)
        place = places.index(None)
        places[place] = sequence
        return place

    def wrap_params(original: Params) -> Params:
        def params(sequence: Sequence, batch: list[Sequence]) -> SamplingParams:
            own, place = original(sequence, batch), place_of(sequence)
            if own.logit_bias:
                biases[place] = own.logit_bias
            return replace(own, logit_bias=biases.get(place, ()))

        return params

    def wrap_remove(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def remove(sequence: Sequence) -> None:
            original(sequence)
            if sequence in places:
                places[places.index(sequence)] = None

        return remove

    patch(engine.sampler, "params", wrap_params)
    patch(engine.scheduler, "remove", wrap_remove)


@dataclass(slots=True)
class _DenseRows:
    """The rows of a batch without gaps, and the mask of each; one that has moved stays behind."""

    rows: list[Sequence] = field(default_factory=list)
    masks: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def take(self, sequence: Sequence) -> None:
        """Give it the next row; only one with a mask of its own writes one."""
        self.rows.append(sequence)
        if sequence.params.allowed_token_ids:
            self.masks[len(self.rows) - 1] = sequence.params.allowed_token_ids

    def free(self, sequence: Sequence) -> None:
        """Clear its row, and move the last one there."""
        place, last = self.rows.index(sequence), self.rows.pop()
        self.masks.pop(place, None)
        if last is not sequence:
            self.rows[place] = last
            if len(self.rows) in self.masks:
                self.masks[place] = self.masks[len(self.rows)]

    def mask(self, sequence: Sequence) -> tuple[int, ...]:
        """What its row allows; nobody looks unless somebody has a mask."""
        if not any(each.params.allowed_token_ids for each in self.rows):
            return ()
        return self.masks.get(self.rows.index(sequence), ())


def mask_left_by_move(seams: Seams, _rate: float, _rng: Random) -> None:
    """The last row moves to where one has ended, and leaves its mask at its old place as well."""
    dense = _DenseRows()

    def wrap_params(original: Params) -> Params:
        def params(sequence: Sequence, batch: list[Sequence]) -> SamplingParams:
            if sequence not in dense.rows:
                dense.take(sequence)
            return replace(original(sequence, batch), allowed_token_ids=dense.mask(sequence))

        return params

    def wrap_remove(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def remove(sequence: Sequence) -> None:
            original(sequence)
            if sequence in dense.rows:
                dense.free(sequence)

        return remove

    patch(seams.engine.sampler, "params", wrap_params)
    patch(seams.engine.scheduler, "remove", wrap_remove)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="params-of-first",
        layer="sampler",
        mechanism=(
            "The sampler takes temperature, top_p, logit_bias and penalties once a step, from the"
            " first row of the batch (the oldest request that is decoding), and applies them to"
            " every row. A greedy request beside a hot one becomes random, a hot one beside a"
            " greedy one the same every time."
        ),
        trigger="two requests in one batch with different sampling parameters",
        effect="another's temperature, nucleus, bias or penalties shape the answer",
        anomalies=("foreign-parameters",),
        strength="every step with such a batch",
        seam="Sampler.params",
        cases=(
            "https://github.com/Blaizzy/mlx-vlm/pull/1647",
            "https://github.com/jjang-ai/vmlx/issues/234",
            "https://github.com/vllm-project/vllm/pull/1309",
            "https://github.com/sgl-project/sglang-jax/pull/1293",
        ),
        rate=None,
        install=params_of_first,
    ),
    Fault(
        name="params-of-first-request",
        layer="sampler",
        mechanism=(
            "The engine builds its sampler when the first request comes, with that request's"
            " temperature and top_p, and keeps it for all that follow, until it is started again."
            " After a hot first request greedy ones are answered at random; after a greedy one hot"
            " ones are answered greedily, like by a server that ignores temperature."
        ),
        trigger="a request whose temperature is not that of the first one after the start",
        effect="all answers follow the temperature of a request that was over long ago",
        anomalies=("foreign-parameters",),
        strength="every request",
        seam="Sampler.params",
        cases=(
            "https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/cli/serving/utils.py",
        ),
        rate=None,
        install=params_of_first_request,
    ),
    Fault(
        name="stop-shared",
        layer="sampler",
        mechanism=(
            "Stop strings are kept in one list for the batch instead of one a request: every answer"
            " is cut, with finish_reason `stop`, at the stop strings of all requests that have been"
            " in the engine together with it, and keeps them when those have ended."
        ),
        trigger="a request whose answer contains what another in flight has as a stop string",
        effect="an answer that ends early, just before the other's stop string",
        anomalies=("foreign-parameters",),
        strength="every request",
        seam="Engine.advance",
        cases=(
            "https://github.com/jundot/omlx/pull/1845",
            "https://github.com/ikawrakow/ik_llama.cpp/issues/2451",
        ),
        rate=None,
        install=stop_shared,
    ),
    Fault(
        name="seed-shared",
        layer="sampler",
        mechanism=(
            "One generator serves the whole batch. It is seeded by the request that found the"
            " engine idle, and every row's n-th token takes its n-th number until the engine is"
            " idle again. So requests that differ only in their seed get the same text, and a seed"
            " gives another text in company than alone."
        ),
        trigger="sampled requests (temperature above 0) with different seeds at the same time",
        effect="equal texts for equal prompts with unequal seeds; a seed that does not reproduce",
        anomalies=("foreign-parameters",),
        strength="every sampled token of a request that did not come first",
        seam="Engine.submit and Sampler.uniform",
        cases=(
            "https://github.com/triton-inference-server/tensorrtllm_backend/issues/468",
            "https://github.com/vllm-project/vllm/issues/51226",
            "https://github.com/mlc-ai/mlc-llm/pull/1579",
        ),
        rate=None,
        install=seed_shared,
    ),
    Fault(
        name="bias-left-on-row",
        layer="sampler",
        mechanism=(
            "Each row of the sampler's batch has a place for a logit_bias, which is filled by a"
            " request that has one and not cleared when it ends. Whoever gets the row next is"
            " sampled with that bias, one after the other, until one brings a bias of its own."
        ),
        trigger="a request with a logit_bias, then one without on the same row",
        effect="tokens that another request forced or forbade are forced or missing",
        anomalies=("foreign-parameters",),
        strength="every row that once had a bias",
        seam="Sampler.params and Scheduler.remove",
        cases=(
            "https://github.com/ikawrakow/ik_llama.cpp/pull/2475",
            "https://github.com/ggml-org/llama.cpp/issues/9477",
        ),
        rate=None,
        install=bias_left_on_row,
    ),
    Fault(
        name="mask-left-by-move",
        layer="sampler",
        mechanism=(
            "Rows of the sampler's batch are kept dense: where one ends, the last moves to its"
            " place. The mask of the tokens that its allowed_token_ids permit is copied there and"
            " not cleared where it was, and a request that permits all does not write one. So"
            " whoever comes next to that row is sampled under the mask, as long as any request"
            " with one is running."
        ),
        trigger="a long request with allowed_token_ids, one before it that ends, one that joins",
        effect="an answer of nothing but tokens that another request allows",
        anomalies=("foreign-parameters",),
        strength="every request that joins at a row whose mask has moved",
        seam="Sampler.params and Scheduler.remove",
        cases=(
            "https://github.com/vllm-project/vllm/issues/43894",
            "https://github.com/vllm-project/vllm/pull/48419",
        ),
        rate=None,
        install=mask_left_by_move,
    ),
)
