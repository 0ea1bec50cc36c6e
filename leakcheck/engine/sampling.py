"""From logits to the next token of every row, each by its own parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from leakcheck.engine.sequence import Sequence
from leakcheck.engine.values import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The token chosen for a row, with raw log-probabilities where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Vectorised over rows; the random number of a row comes from its own sequence only."""

    def sample(self, sequences: list[Sequence], logits: torch.Tensor) -> list[Pick]:
        """One pick a row of `logits` [rows, vocabulary], in float32."""
        params = [self.params(sequence, sequences) for sequence in sequences]
        shaped = self.shape(sequences, params, logits)
        tokens = shaped.argmax(dim=-1)
        warm = [row for row, its in enumerate(params) if its.temperature > 0]
        if warm:
            chosen = [(sequences[row], params[row]) for row in warm]
            tokens[warm] = self.draw(chosen, shaped[warm])
        return self.report(params, logits, tokens)

    def params(self, sequence: Sequence, batch: list[Sequence]) -> SamplingParams:
        """Whose parameters serve this row: its own."""
        del batch
        return sequence.params

    def shape(
        self, sequences: list[Sequence], params: list[SamplingParams], logits: torch.Tensor
    ) -> torch.Tensor:
        """Logits after bias, penalties and what is allowed; the input where no row has any."""
        shaped = logits
        for row, (sequence, its) in enumerate(zip(sequences, params, strict=True)):
            penalised = its.presence_penalty or its.frequency_penalty
            if not its.logit_bias and not its.allowed_token_ids and not penalised:
                continue
            shaped = logits.clone() if shaped is logits else shaped
            if its.logit_bias:
                ids, values = zip(*its.logit_bias, strict=True)
                add(shaped[row], list(ids), list(values))
            if penalised and sequence.generated:
                counts = Counter(sequence.output)
                costs = [-its.presence_penalty - its.frequency_penalty * n for n in counts.values()]
                add(shaped[row], list(counts), costs)
            if its.allowed_token_ids:
                allowed = list(its.allowed_token_ids)
                kept = shaped[row, allowed]
                shaped[row] = -torch.inf
                shaped[row, allowed] = kept
        return shaped

    def draw(
        self, chosen: list[tuple[Sequence, SamplingParams]], logits: torch.Tensor
    ) -> torch.Tensor:
        """Inverse-transform sampling from each row's nucleus; one uniform number a row."""
        numbers = [
            (its.temperature, max(its.top_p, 1e-9), self.uniform(sequence))
            for sequence, its in chosen
        ]
        columns = torch.tensor(numbers, dtype=torch.float32, device=logits.device)
        temperature, top_p, uniform = (columns[:, i : i + 1] for i in range(3))
        probabilities, order = (logits / temperature).softmax(dim=-1).sort(descending=True)
        below = probabilities.cumsum(dim=-1) - probabilities
        kept = torch.where(below < top_p, probabilities, 0.0)
        cumulated = kept.cumsum(dim=-1)
        ranks = (cumulated <= uniform * cumulated[:, -1:]).sum(dim=-1, keepdim=True)
        last = (kept > 0).sum(dim=-1, keepdim=True) - 1
        return order.gather(1, ranks.minimum(last))[:, 0]

    def uniform(self, sequence: Sequence) -> float:
        """The next random number of this sequence, in [0, 1)."""
        return sequence.rng.random()

    def report(
        self, params: list[SamplingParams], logits: torch.Tensor, tokens: torch.Tensor
    ) -> list[Pick]:
        """Picks with the model's own log-probabilities for the rows that asked."""
        chosen: list[int] = tokens.tolist()
        asked = [row for row, its in enumerate(params) if its.logprobs is not None]
        if not asked:
            return [Pick(token=token) for token in chosen]
        raw = logits[asked].log_softmax(dim=-1)
        own = raw.gather(1, tokens[asked, None])[:, 0].tolist()
        most = max(params[row].logprobs or 0 for row in asked)
        values, ids = raw.topk(most, dim=-1) if most else (raw[:, :0], raw[:, :0].long())
        tops = [
            list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        picks = [Pick(token=token) for token in chosen]
        for row, logprob, top in zip(asked, own, tops, strict=True):
            count = params[row].logprobs or 0
            picks[row] = Pick(token=chosen[row], logprob=logprob, top=tuple(top[:count]))
        return picks


def add(row: torch.Tensor, ids: list[int], values: list[float]) -> None:
    """Add values to some entries of one row of logits, in place."""
    row[ids] += torch.tensor(values, dtype=row.dtype, device=row.device)
