"""What one choice does to its logits before a token is drawn: penalties, bias, allowed and banned ids, minimum length.

Penalties: repetition divides positive and multiplies negative logits of ids seen in prompt or output (Keskar et al.,
"CTRL", 2019); presence and frequency subtract by the output alone (OpenAI's definition). Knows no batch.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from headrace_worker.scheduling.request import Request


class LogitEdits:
    """The edits of one choice, in place on its row. Costs nothing for a request that asks for none."""

    def __init__(self, request: Request, end_token_ids: frozenset[int], vocab_size: int, device: torch.device) -> None:
        params = self._params = request.sampling
        self._device = device
        self._repeats = params.repetition_penalty != 1
        self._counts_output = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._seen: set[int] = set(request.prompt_ids) if self._repeats else set()
        self._output: Counter[int] = Counter()
        self._bias_ids = self._ids(params.logit_bias)
        self._bias = torch.tensor([float(v) for v in params.logit_bias.values()], device=device)
        self._ends = self._ids(end_token_ids | params.stop_token_ids)
        self._forbidden: Tensor | None = None
        if params.allowed_ids is not None:
            self._forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._forbidden[self._ids(params.allowed_ids)] = False
        if params.banned_ids:
            if self._forbidden is None:
                self._forbidden = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._forbidden[self._ids(params.banned_ids)] = True

    def _ids(self, ids: object) -> Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._device)  # type: ignore[call-overload]

    def changes(self, output_index: int) -> bool:
        """Whether `apply` would do anything."""
        params = self._params
        return bool(
            (self._repeats and self._seen)
            or (self._counts_output and self._output)
            or params.logit_bias
            or self._forbidden is not None
            or output_index < params.min_tokens
        )

    def apply(self, row_V: Tensor, output_index: int) -> None:
        """Edit the logits from which output number `output_index` is drawn."""
        params = self._params
        if self._repeats and self._seen:
            ids = self._ids(self._seen)
            values = row_V[ids]
            row_V[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if self._counts_output and self._output:
            counts = torch.tensor(list(self._output.values()), dtype=row_V.dtype, device=self._device)
            row_V[self._ids(self._output)] -= params.presence_penalty + params.frequency_penalty * counts
        self.constrain(row_V, output_index)

    def constrain(self, row_V: Tensor, output_index: int) -> None:
        """What `apply` does beside the penalties of what was seen."""
        params = self._params
        if params.logit_bias:
            row_V[self._bias_ids] += self._bias
        if self._forbidden is not None:
            row_V.masked_fill_(self._forbidden, float("-inf"))
        if output_index < params.min_tokens:
            row_V[self._ends] = float("-inf")

    def seen(self) -> dict[int, int]:
        """Every id that a penalty concerns -> how often it is in the output."""
        return {**dict.fromkeys(self._seen, 0), **self._output}

    def note(self, token_id: int) -> None:
        """A token was drawn."""
        if self._repeats:
            self._seen.add(token_id)
        if self._counts_output:
            self._output[token_id] += 1
