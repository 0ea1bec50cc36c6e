"""The same requests alone and together, on engines of this process.

Together they take the tokens that they took alone, whatever is sampled: what differs then is the
engine's doing, and not the consequence of another word earlier on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from leakcheck.engine.cache import Shape
from leakcheck.engine.engine import Engine
from leakcheck.engine.faults import patch
from leakcheck.engine.sampling import Pick
from leakcheck.engine.values import EngineOptions, GenerateRequest, SamplingParams

HEAD = 22
"""Tokens that some prompts begin with alike: a block of 16, and the head of another."""
STEPS_MAX = 400
IDLE_STEPS_MAX = 5
FIRST_TOKEN = 10
"""Token ids below are apt to be special ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, when it comes (a step, or None: once nothing runs) and when it is hung up on."""

    request: GenerateRequest
    step: int | None
    abort_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model whose engines these are."""

    model: Any
    tokenizer: Any
    shapes: list[tuple[Shape, Shape]]

    def engine(self, options: EngineOptions) -> Engine:
        """A fresh engine, around a model that a fault may patch without harm to the next."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        own = copy.deepcopy(self.model, {id(tensor): tensor for tensor in weights})
        return Engine(own, self.tokenizer, self.shapes, options)


@dataclass(slots=True, kw_only=True)
class Played:
    """What came of a run: tokens by request, picks that were not what it took alone, the end."""

    tokens: dict[str, list[int]]
    picks: int = 0
    other_picks: int = 0
    steps: int = 0
    preemptions: int = 0
    evictions: int = 0
    unfinished: tuple[str, ...] = ()
    broke: str | None = None


def traffic(vocabulary: int, seed: int) -> list[Asked]:
    """Fourteen requests: ragged, with early finishers, late joiners, an abort, cached, evicted and
    almost cached prefixes, another salt, other parameters, and some on their own at the end.
    """
    rng = Random(f"inspect {seed}")

    def some(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(FIRST_TOKEN, vocabulary) for _ in range(count))

    head, first, third = some(HEAD), some(70), some(45)
    altered = (*third[:3], third[4], *third[4:])
    warm = SamplingParams(temperature=0.8, seed=seed)
    biased = SamplingParams(logit_bias=((rng.randrange(FIRST_TOKEN, vocabulary), 40.0),))
    plan: list[tuple[tuple[int, ...], int, int | None, dict[str, Any]]] = [
        (first, 24, 0, {}),
        (some(21), 6, 0, {"params": warm}),
        (third, 24, 0, {}),
        (some(33), 3, 0, {}),
        (head + some(30), 16, 3, {"params": replace(warm, seed=seed + 1)}),
        (some(90), 30, 3, {"abort_step": 9}),
        (head + some(12), 8, 6, {}),
        (some(52), 6, 6, {"params": biased}),
        (first, 4, None, {"salt": "another"}),
        (altered, 4, None, {}),
        (some(40), 4, None, {}),
        (some(25), 4, None, {}),
        (third, 4, None, {}),
        (first, 4, None, {}),
    ]
    return [asked(f"r{n:02}", *each) for n, each in enumerate(plan)]


def asked(
    name: str, prompt: tuple[int, ...], most: int, step: int | None, more: dict[str, Any]
) -> Asked:
    """One request of the plan, made to go on to its last token."""
    params = replace(more.get("params", SamplingParams()), max_tokens=most, ignore_eos=True)
    request = GenerateRequest(id=name, prompt=prompt, params=params, salt=more.get("salt", ""))
    return Asked(request=request, step=step, abort_step=more.get("abort_step"))


def alone(engine: Engine, plan: list[Asked]) -> Played:
    """Each request by itself, one after the other."""
    played = Played(tokens={})
    for each in plan:
        engine.submit(each.request)
        (sequence,) = engine.live[each.request.id]
        while engine.has_work:
            engine.step()
            played.steps += 1
        played.tokens[each.request.id] = sequence.tokens
    return played


def together(engine: Engine, plan: list[Asked], solo: dict[str, list[int]]) -> Played:
    """All requests as planned, on the tokens of `solo`; a step that breaks ends the run."""
    played = Played(tokens=solo)
    patch(engine.sampler, "sample", lambda original: forcing(original, solo, played))
    coming, idle = list(plan), 0
    while (coming or engine.has_work) and played.steps < STEPS_MAX and idle < IDLE_STEPS_MAX:
        before = engine.steps
        try:
            coming = let_in(engine, coming, played.steps)
            hang_up(engine, plan, played.steps)
            engine.step()
        except Exception as error:  # noqa: BLE001 # a fault may break the engine in any way: a result
            played.broke = f"{type(error).__name__}: {error}"
            break
        played.steps += 1
        idle = idle + 1 if engine.steps == before else 0
    played.unfinished = tuple(engine.live)
    played.preemptions, played.evictions = engine.scheduler.preemptions, engine.pool.evictions
    return played


def let_in(engine: Engine, coming: list[Asked], step: int) -> list[Asked]:
    """Submit what is due; who waits for an idle engine gets it for itself. Returns who has still
    to come.
    """
    later = []
    for each in coming:
        due = each.step <= step if each.step is not None else not engine.has_work
        if due:
            engine.submit(each.request)
        else:
            later.append(each)
    return later


def hang_up(engine: Engine, plan: list[Asked], step: int) -> None:
    """Abort whom this step ends."""
    for each in plan:
        if each.abort_step == step:
            engine.abort(each.request.id)


Sample = Callable[..., list[Pick]]


def forcing(original: Sample, solo: dict[str, list[int]], played: Played) -> Sample:
    """Let the sampler pick as it does, note whether it is what it was alone, and take that."""

    def sample(sequences: list[Any], logits: Any) -> list[Pick]:
        taken = []
        for sequence, pick in zip(sequences, original(sequences, logits), strict=True):
            known = solo.get(sequence.request.id, [])
            at = len(sequence.tokens)
            played.picks += 1
            if at < len(known):
                played.other_picks += known[at] != pick.token
                taken.append(replace(pick, token=known[at]))
            else:
                played.other_picks += 1
                taken.append(pick)
        return taken

    return sample
