"""The engine: requests go in, one `step` computes a batch and says what it added to each answer."""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import torch

from leakcheck.engine.cache import KVStore, PagedCache, Shape
from leakcheck.engine.pool import BlockPool
from leakcheck.engine.prefix import PrefixCache
from leakcheck.engine.rows import Batch, Batcher
from leakcheck.engine.sampling import Pick, Sampler
from leakcheck.engine.scheduler import Scheduler
from leakcheck.engine.sequence import Sequence
from leakcheck.engine.text import TextStream
from leakcheck.engine.values import (
    EngineOptions,
    FinishReason,
    GenerateRequest,
    RequestError,
    Stats,
    TokenLogprob,
    Update,
)


class Engine:
    """Runs a decoder-only model for many requests at once. Not thread-safe: `loop` owns it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        layer_shapes: list[tuple[Shape, Shape]],
        options: EngineOptions,
    ) -> None:
        """Model and tokenizer of transformers; `layer_shapes` as `models.layer_shapes` gives."""
        self.model = model
        self.options = options
        self.text_tokenizer = tokenizer.backend_tokenizer
        self.eos_tokens = eos_tokens(model, tokenizer)
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.store = KVStore(
            layer_shapes,
            options.num_blocks,
            options.block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self.prefix = PrefixCache(options.block_size, enabled=options.prefix_cache)
        self.pool = BlockPool(options.num_blocks, self.forget)
        self.scheduler = Scheduler(options, self.pool, self.prefix, self.store)
        self.batcher = Batcher(options.block_size, self.store.padding_block, model.device)
        self.sampler = Sampler()
        self.cache = PagedCache(self.store)
        self.live: dict[str, list[Sequence]] = {}
        self.arrivals = self.finished = self.aborted = self.generated = self.steps = 0
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def forget(self, block: int) -> None:
        """The pool evicts a cached block: the prefix cache must not find it any more."""
        self.prefix.forget(block)

    @property
    def context_tokens(self) -> int:
        """The most tokens, prompt and answer together, that a request can have."""
        config = self.model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        capacity = self.options.num_blocks * self.options.block_size
        return min(capacity, positions or capacity)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.live)

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. RequestError when it can never be served."""
        self.check(request)
        order = self.arrivals
        self.arrivals += 1
        sequence = self.new_sequence(request, order, 0)
        sequence.forks = request.n - 1
        self.live[request.id] = [sequence]
        self.scheduler.add(sequence)

    def check(self, request: GenerateRequest) -> None:
        """RequestError when the request can never fit, or its id is in use."""
        prompt, most = len(request.prompt), request.params.max_tokens
        if request.id in self.live:
            raise RequestError(f"a request with the id {request.id!r} is in flight", status=409)
        if not prompt:
            raise RequestError("the prompt is empty: it has no tokens", param="prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= self.vocabulary:
            raise RequestError(f"token ids go from 0 to {self.vocabulary - 1}", param="prompt")
        if prompt + most > self.context_tokens:
            raise RequestError(
                f"this model's maximum context length is {self.context_tokens} tokens, but"
                f" {prompt + most} were asked for ({prompt} in the prompt, {most} to generate)",
                code="context_length_exceeded",
            )
        named = {
            "logit_bias": [token for token, _ in request.params.logit_bias],
            "allowed_token_ids": request.params.allowed_token_ids,
        }
        for param, tokens in named.items():
            if any(token >= self.vocabulary for token in tokens):
                raise RequestError(
                    f"{param} names a token beyond the last one, {self.vocabulary - 1}", param=param
                )
        if request.n > self.options.max_running:
            raise RequestError(f"n is at most {self.options.max_running} here", param="n")

    def abort(self, request_id: str) -> list[Update]:
        """End a request and free everything it holds; nothing when it has ended already."""
        updates = []
        for sequence in self.live.pop(request_id, []):
            if sequence.finish_reason is None:
                self.scheduler.remove(sequence)
                updates += [
                    self.ended(leaf, "abort") for leaf in (sequence, *self.unborn(sequence))
                ]
        self.aborted += bool(updates)
        return updates

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Compute one batch; returns what it added, in order of arrival within the batch."""
        work = self.scheduler.schedule()
        if not work:
            return []
        batch = self.batcher.build(work)
        logits = self.forward(batch)
        self.scheduler.commit(work)
        sampled = [row.sequence for row in batch.rows if row.last]
        sequences, logits = self.split(sampled, logits)
        picks = self.sampler.sample(sequences, logits) if sequences else []
        self.steps += 1
        return [self.advance(*each) for each in zip(sequences, picks, strict=True)]

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [sampled rows, vocabulary] in float32 of the batch's last tokens."""
        self.cache.begin(batch)
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            attention_mask=self.model_mask(batch.mask),
            use_cache=True,
            **{self._cache_name: self.cache},
            **self._keep_last,
        )
        last = [index for index, row in enumerate(batch.rows) if row.last]
        logits: torch.Tensor = output.logits[last, -1]
        return logits.float()

    def model_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """The mask in the form the model's attention takes: eager attention adds it."""
        if self.model.config._attn_implementation != "eager":  # noqa: SLF001 # its only name
            return visible
        lowest = torch.finfo(self.model.dtype).min
        hidden = torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device)
        return hidden.masked_fill_(~visible, lowest)

    def split(
        self, sampled: list[Sequence], logits: torch.Tensor
    ) -> tuple[list[Sequence], torch.Tensor]:
        """Fork the sequences whose prompt is done: every choice samples from the same row."""
        sequences, rows = [], []
        for row, sequence in enumerate(sampled):
            family = [sequence, *self.unborn(sequence)]
            for child in family[1:]:
                self.scheduler.fork(sequence, child)
                self.live[sequence.request.id].append(child)
            sequence.forks = 0
            sequences += family
            rows += [row] * len(family)
        return sequences, logits if len(rows) == len(sampled) else logits[rows]

    def advance(self, sequence: Sequence, pick: Pick) -> Update:
        """Append the picked token and say what it added to the answer."""
        sequence.tokens.append(pick.token)
        self.generated += 1
        if pick.logprob is not None:
            sequence.held_logprobs.append(
                TokenLogprob(
                    token=pick.token,
                    logprob=pick.logprob,
                    top=pick.top,
                    offset=sequence.text.length,
                )
            )
        if pick.token in self.eos_tokens and not sequence.params.ignore_eos:
            return self.leave(sequence, "stop", "")
        text = sequence.text.feed(pick.token)
        if sequence.text.stopped:
            return self.leave(sequence, "stop", text)
        if sequence.generated >= sequence.params.max_tokens:
            return self.leave(sequence, "length", text)
        return Update(
            id=sequence.request.id,
            index=sequence.index,
            text=text,
            tokens=(pick.token,),
            logprobs=released_logprobs(sequence) if sequence.held_logprobs else (),
        )

    def leave(self, sequence: Sequence, reason: FinishReason, text: str) -> Update:
        """Free an ended sequence and say goodbye."""
        self.scheduler.remove(sequence)
        update = self.ended(sequence, reason, text + sequence.text.finish())
        family = self.live[sequence.request.id]
        if all(its.finish_reason for its in family):
            del self.live[sequence.request.id]
            self.finished += 1
        return update

    def ended(self, sequence: Sequence, reason: FinishReason, text: str = "") -> Update:
        """The last update of a choice."""
        sequence.finish_reason = reason
        return Update(
            id=sequence.request.id,
            index=sequence.index,
            text=text,
            tokens=() if reason == "abort" else (sequence.tokens[-1],),
            logprobs=released_logprobs(sequence),
            finish_reason=reason,
            usage=sequence.usage(),
        )

    def unborn(self, sequence: Sequence) -> list[Sequence]:
        """The choices that a sequence has still to split into."""
        order = sequence.order[0]
        return [
            self.new_sequence(sequence.request, order, index)
            for index in range(1, sequence.forks + 1)
        ]

    def new_sequence(self, request: GenerateRequest, order: int, index: int) -> Sequence:
        """A fresh choice of a request: its own tokens, text and random numbers."""
        prompt = list(request.prompt)
        return Sequence(
            request=request,
            order=(order, index),
            params=request.params,
            tokens=prompt,
            rng=self.random(request, order, index),
            text=TextStream(self.text_tokenizer, prompt, request.params.stop),
        )

    def random(self, request: GenerateRequest, order: int, index: int) -> Random:
        """The random numbers of one choice: by its seed, or by the engine's and its arrival."""
        seed = request.params.seed
        own = f"{self.options.seed}/{order}" if seed is None else f"seed {seed}"
        return Random(f"{own}/{index}")

    def stats(self) -> Stats:
        """Gauges and counts of this moment."""
        scheduler, pool = self.scheduler, self.pool
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_used=pool.used_count,
            blocks_free=pool.free_count,
            blocks_cached=pool.cached_count,
            requests=self.arrivals,
            finished=self.finished,
            aborted=self.aborted,
            preemptions=scheduler.preemptions,
            evictions=pool.evictions,
            prefix_queries_tokens=scheduler.prefix_queries_tokens,
            prefix_hits_tokens=scheduler.prefix_hits_tokens,
            generated_tokens=self.generated,
            steps=self.steps,
        )


def released_logprobs(sequence: Sequence) -> tuple[TokenLogprob, ...]:
    """The logprobs that go out now: of tokens whose text has begun to go out.

    At a stop string the tokens beyond the trimmed text are dropped with it; otherwise the end takes
    all that is left, the end-of-sequence token included.
    """
    held = sequence.held_logprobs
    text = sequence.text
    if sequence.finish_reason is not None and not text.stopped:
        count = len(held)
    else:
        count = sum(its.offset < text.released for its in held)
    sequence.held_logprobs = held[count:]
    return tuple(held[:count])


def eos_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer, by the generation config and the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)
