"""Draws one token per sampling row, for a whole batch at once. Knows requests' parameters, not their prompts' pages.

    logits -> penalties, bias, masks -> greedy rows: argmax
                                     -> others: temperature, filters, inverse of the distribution function

A row without a valid token, or with a NaN, fails alone. Reported log-probabilities are the model's own, unedited.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.execution.logit_edits import LogitEdits
from headrace_worker.execution.random_stream import uniform
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.sampling_filter import filter_logits
from headrace_worker.scheduling.plan import ResultRow
from headrace_worker.scheduling.request import Request, SamplingParams

# Below this a temperature is as good as greedy in float32, and dividing by it is still safe.
_LEAST_TEMPERATURE = 1e-30


@dataclass(slots=True)
class _Choice:
    """What the sampler keeps of one choice."""

    params: SamplingParams
    choice: int
    seed: int
    edits: LogitEdits

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0 or self.params.top_p == 0 or self.params.top_k == 1


class Sampler:
    """One per runner. Handles are learned with `admit` and forgotten with `release`."""

    def __init__(self, vocab_size: int, end_token_ids: frozenset[int], device: torch.device) -> None:
        self._vocab_size, self._end_token_ids, self._device = vocab_size, end_token_ids, device
        self._choices: dict[int, _Choice] = {}

    def admit(self, request: Request) -> None:
        params = request.sampling
        seed = secrets.randbits(64) if params.seed is None else params.seed
        for choice in range(request.n):
            edits = LogitEdits(request, self._end_token_ids, self._vocab_size, self._device)
            self._choices[request.handle + choice] = _Choice(params, choice, seed, edits)

    def release(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._choices.pop(handle, None)

    def sample(self, logits_RV: Tensor, handles: Sequence[int], output_indices: Sequence[int]) -> list[ResultRow]:
        """float32 logits, one row per handle; `output_indices` number the tokens drawn among each one's output."""
        choices = [self._choices[handle] for handle in handles]
        broken_R = ~(logits_RV < float("inf")).all(1)  # NaN and +inf fail the comparison
        edited_RV = logits_RV.masked_fill(broken_R[:, None], 0.0)
        clean_RV = edited_RV.clone() if any(choice.params.logprobs for choice in choices) else edited_RV
        for row, (choice, index) in enumerate(zip(choices, output_indices, strict=True)):
            choice.edits.apply(edited_RV[row], index)
        empty_R = edited_RV.amax(1) == float("-inf")
        drawn = self._draw(edited_RV, choices, output_indices).tolist()
        logprobs = self._logprobs(clean_RV, choices, drawn)
        results = []
        for row, (broken, empty) in enumerate(zip(broken_R.tolist(), empty_R.tolist(), strict=True)):
            if broken or empty:
                results.append(ResultRow(handles[row], error="engine_error" if broken else "no_valid_token"))
                continue
            choices[row].edits.note(drawn[row])
            results.append(ResultRow(handles[row], (drawn[row],), logprobs.get(row)))
        return results

    def _draw(self, edited_RV: Tensor, choices: list[_Choice], output_indices: Sequence[int]) -> Tensor:
        """Token ids [R]; of a row without a valid token, any."""
        ids_R = edited_RV.argmax(1)
        rows = [row for row, choice in enumerate(choices) if not choice.greedy]
        if rows:
            picked = [choices[row] for row in rows]
            random = [uniform(c.seed, output_indices[row], c.choice) for row, c in zip(rows, picked, strict=True)]
            rows_S = torch.tensor(rows, device=self._device)
            ids_R[rows_S] = self._draw_random(edited_RV[rows_S], picked, random)
        return ids_R

    def _draw_random(self, logits_SV: Tensor, choices: list[_Choice], random: list[float]) -> Tensor:
        def per_row(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=self._device)

        params = [choice.params for choice in choices]
        temperature_S = per_row([max(each.temperature, _LEAST_TEMPERATURE) for each in params]).float()
        # From the top, so that no finite logit overflows upwards; -inf - -inf of an empty row is made 0.
        from_top_SV = (logits_SV - logits_SV.amax(1, keepdim=True)).nan_to_num_(nan=0.0)
        kept_SV = filter_logits(
            from_top_SV / temperature_S[:, None],
            torch.tensor([each.top_k for each in params], device=self._device),
            per_row([each.top_p for each in params]),
            per_row([each.min_p for each in params]).float(),
        )
        # In the order of the vocabulary: the order of likelihood would change with the last bit of a logit.
        mass_SV = kept_SV.softmax(1, dtype=torch.float64).cumsum(1)
        target_S1 = (per_row(random) * mass_SV[:, -1])[:, None]
        return torch.searchsorted(mass_SV, target_S1, right=True)[:, 0].clamp(max=self._vocab_size - 1)

    def _logprobs(
        self, logits_RV: Tensor, choices: list[_Choice], drawn: list[int]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """By row, for the rows that want them."""
        rows = [row for row, choice in enumerate(choices) if choice.params.logprobs]
        if not rows:
            return {}
        logprobs_SV = logits_RV[torch.tensor(rows, device=self._device)].log_softmax(1)
        num_top = max(choices[row].params.num_logprobs for row in rows)
        best = logprobs_SV.topk(max(num_top, 1), dim=1)
        values, ids = best.values.tolist(), best.indices.tolist()
        own = logprobs_SV[torch.arange(len(rows)), torch.tensor([drawn[row] for row in rows])].tolist()
        found: dict[int, tuple[TokenLogprob, ...]] = {}
        for place, row in enumerate(rows):
            count = choices[row].params.num_logprobs
            top = tuple(zip(ids[place][:count], values[place][:count], strict=True))
            found[row] = (TokenLogprob(drawn[row], own[place], top),)
        return found
