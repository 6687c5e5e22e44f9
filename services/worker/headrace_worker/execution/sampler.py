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

from headrace_worker.execution.device_copy import Readback
from headrace_worker.execution.logit_edits import LogitEdits
from headrace_worker.execution.random_stream import uniform
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.sampling_filter import filter_logits
from headrace_worker.execution.token_mask import TokenMasks, apply_masks
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

    def sample(
        self,
        logits_RV: Tensor,
        handles: Sequence[int],
        output_indices: Sequence[int],
        masks: TokenMasks | None = None,
    ) -> list[ResultRow]:
        """`draw`, and wait for it."""
        return self.draw(logits_RV, handles, output_indices, masks).take()

    def draw(
        self,
        logits_RV: Tensor,
        handles: Sequence[int],
        output_indices: Sequence[int],
        masks: TokenMasks | None = None,
    ) -> Draw:
        """float32 logits, one row per handle, which are overwritten; `output_indices` number the tokens to draw."""
        choices = [self._choices[handle] for handle in handles]
        top_R, ids_R = logits_RV.max(1)
        broken_R = ~(top_R < float("inf"))  # the largest of a row with a NaN is NaN, which fails the comparison
        if logits_RV.is_cuda or bool(broken_R.any()):  # to ask a GPU would be to wait for it
            logits_RV.masked_fill_(broken_R[:, None], 0.0)
        reports = _Reports(logits_RV, [choice.params for choice in choices])
        edited = [row for row, choice in enumerate(choices) if choice.edits.changes(output_indices[row])]
        for row in edited:
            choices[row].edits.apply(logits_RV[row], output_indices[row])
        if masks is not None:
            apply_masks(logits_RV, masks)
            edited += masks.rows
        if edited:
            rows_E = torch.tensor(edited, device=self._device)
            top_R[rows_E], ids_R[rows_E] = logits_RV[rows_E].max(1)
        self._draw_others(logits_RV, choices, output_indices, ids_R)
        reports.begin(ids_R)
        return Draw(list(handles), choices, ids_R, Readback([ids_R, broken_R, top_R]), reports)

    def _draw_others(self, logits_RV: Tensor, choices: list[_Choice], indices: Sequence[int], ids_R: Tensor) -> None:
        """Replaces the top tokens in `ids_R` where a row is not greedy; of a row without a valid token by anything."""
        rows = [row for row, choice in enumerate(choices) if not choice.greedy]
        if rows:
            picked = [choices[row] for row in rows]
            random = [uniform(c.seed, indices[row], c.choice) for row, c in zip(rows, picked, strict=True)]
            rows_S = torch.tensor(rows, device=self._device)
            ids_R[rows_S] = self._draw_random(logits_RV[rows_S], picked, random)

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
        mass_SV = kept_SV.softmax(1).cumsum(1, dtype=torch.float64)
        target_S1 = (per_row(random) * mass_SV[:, -1])[:, None]
        return torch.searchsorted(mass_SV, target_S1, right=True)[:, 0].clamp(max=self._vocab_size - 1)


class Draw:
    """Tokens that are drawn, or being drawn: `ids_R` on the device for the next step, results for the host."""

    def __init__(
        self, handles: list[int], choices: list[_Choice], ids_R: Tensor, readback: Readback, reports: _Reports
    ) -> None:
        self.handles = handles
        self.ids_R = ids_R
        self._choices, self._readback, self._reports = choices, readback, reports

    def take(self) -> list[ResultRow]:
        """Once: waits for the tokens, and notes them for what penalties look back at."""
        drawn, broken, tops = (tensor.tolist() for tensor in self._readback.wait())
        results = []
        for row, handle in enumerate(self.handles):
            if broken[row] or tops[row] == float("-inf"):
                results.append(ResultRow(handle, error="engine_error" if broken[row] else "no_valid_token"))
                continue
            self._choices[row].edits.note(drawn[row])
            results.append(ResultRow(handle, (drawn[row],), self._reports.of(row, drawn[row])))
        return results


class _Reports:
    """Log-probabilities of the rows that want them, from the logits as the model gave them."""

    def __init__(self, logits_RV: Tensor, params: list[SamplingParams]) -> None:
        self._params = params
        self._place = {row: place for place, row in enumerate(r for r, each in enumerate(params) if each.logprobs)}
        if self._place:
            self._rows_S = torch.tensor(list(self._place), device=logits_RV.device)
            self._logprobs_SV = logits_RV[self._rows_S].log_softmax(1)

    def begin(self, ids_R: Tensor) -> None:
        """The drawn tokens are known, to the device at least."""
        if self._place:
            num_top = max(1, *(self._params[row].num_logprobs for row in self._place))
            own_S1 = self._logprobs_SV.gather(1, ids_R[self._rows_S][:, None])
            self._readback = Readback([own_S1, *self._logprobs_SV.topk(num_top, dim=1)])

    def of(self, row: int, token_id: int) -> tuple[TokenLogprob, ...] | None:
        place = self._place.get(row)
        if place is None:
            return None
        own, values, ids = self._readback.wait()
        count = self._params[row].num_logprobs
        top = tuple(zip(ids[place, :count].tolist(), values[place, :count].tolist(), strict=True))
        return (TokenLogprob(token_id, float(own[place, 0]), top),)
