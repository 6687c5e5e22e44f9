"""Draws one token per sampling row, for a whole batch at once. Knows requests' parameters, not their prompts' pages.

    logits -> penalties, bias, masks -> greedy rows: argmax
                                     -> others: temperature, filters, a draw that depends on the row's key alone

A row without a valid token, or with a NaN, fails alone. Reported log-probabilities are the model's own, unedited.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headrace_worker.execution.device_copy import Readback
from headrace_worker.execution.logit_edits import LogitEdits
from headrace_worker.execution.row_draws import Choice, RowDraws, TorchDraws
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.token_mask import TokenMasks, apply_masks
from headrace_worker.scheduling.plan import ResultRow
from headrace_worker.scheduling.request import Request, SamplingParams


class Sampler:
    """One per runner. Handles are learned with `admit` and forgotten with `release`."""

    def __init__(
        self, vocab_size: int, end_token_ids: frozenset[int], device: torch.device, draws: RowDraws | None = None
    ) -> None:
        self._vocab_size, self._end_token_ids, self._device = vocab_size, end_token_ids, device
        self._draws = TorchDraws() if draws is None else draws
        self._choices: dict[int, Choice] = {}

    def admit(self, request: Request) -> None:
        params = request.sampling
        seed = secrets.randbits(64) if params.seed is None else params.seed
        for choice in range(request.n):
            edits = LogitEdits(request, self._end_token_ids, self._vocab_size, self._device)
            self._choices[request.handle + choice] = Choice(params, choice, seed, edits)

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
        reports = _Reports(logits_RV, [choice.params for choice in choices], self._draws)
        edited = [row for row, choice in enumerate(choices) if choice.edits.changes(output_indices[row])]
        if edited:
            picked = [choices[row] for row in edited]
            self._draws.edit(logits_RV, edited, picked, [output_indices[row] for row in edited])
        if masks is not None:
            apply_masks(logits_RV, masks)
            edited += masks.rows
        if edited:
            rows_E = torch.tensor(edited, device=self._device)
            top_R[rows_E], ids_R[rows_E] = logits_RV[rows_E].max(1)
        self._draw_others(logits_RV, choices, output_indices, ids_R)
        reports.begin(ids_R)
        return Draw(list(handles), choices, ids_R, Readback([ids_R, broken_R, top_R]), reports)

    def _draw_others(self, logits_RV: Tensor, choices: list[Choice], indices: Sequence[int], ids_R: Tensor) -> None:
        """Replaces the top tokens in `ids_R` where a row is not greedy; of a row without a valid token by anything."""
        rows = [row for row, choice in enumerate(choices) if not choice.greedy]
        if rows:
            picked = [choices[row] for row in rows]
            drawn_S = self._draws.draw(logits_RV, rows, picked, [indices[row] for row in rows])
            ids_R[torch.tensor(rows, device=self._device)] = drawn_S


class Draw:
    """Tokens that are drawn, or being drawn: `ids_R` on the device for the next step, results for the host."""

    def __init__(
        self, handles: list[int], choices: list[Choice], ids_R: Tensor, readback: Readback, reports: _Reports
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

    def __init__(self, logits_RV: Tensor, params: list[SamplingParams], draws: RowDraws) -> None:
        self._params, self._draws = params, draws
        self._place = {row: place for place, row in enumerate(r for r, each in enumerate(params) if each.logprobs)}
        if self._place:
            self._rows_S = torch.tensor(list(self._place), device=logits_RV.device)
            self._kept_SV = draws.keep(logits_RV[self._rows_S])

    def begin(self, ids_R: Tensor) -> None:
        """The drawn tokens are known, to the device at least."""
        if self._place:
            num_top = max(1, *(self._params[row].num_logprobs for row in self._place))
            best_SM = self._kept_SV.topk(num_top, dim=1).indices
            ids_SM = torch.cat((ids_R[self._rows_S][:, None], best_SM), dim=1)
            self._readback = Readback([self._draws.logprobs(self._kept_SV, ids_SM), best_SM])

    def of(self, row: int, token_id: int) -> tuple[TokenLogprob, ...] | None:
        place = self._place.get(row)
        if place is None:
            return None
        values, ids = self._readback.wait()
        count = self._params[row].num_logprobs
        top = tuple(zip(ids[place, :count].tolist(), values[place, 1 : count + 1].tolist(), strict=True))
        return (TokenLogprob(token_id, float(values[place, 0]), top),)
