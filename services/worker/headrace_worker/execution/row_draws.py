"""How the rows of a step are edited and drawn: by torch, or by our kernels on a card. Knows no handles and no masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.execution.device_copy import upload
from headrace_worker.execution.logit_edits import LogitEdits
from headrace_worker.execution.random_stream import draw_key, uniform
from headrace_worker.execution.sampling_filter import filter_logits
from headrace_worker.scheduling.request import SamplingParams

# Below this a temperature is as good as greedy in float32, and dividing by it is still safe.
_LEAST_TEMPERATURE = 1e-30


@dataclass(slots=True)
class Choice:
    """What the sampler keeps of one choice."""

    params: SamplingParams
    choice: int
    seed: int
    edits: LogitEdits

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0 or self.params.top_p == 0 or self.params.top_k == 1

    @property
    def temperature(self) -> float:
        return max(self.params.temperature, _LEAST_TEMPERATURE)


class RowDraws(ABC):
    """`rows` are rows of the logits, with the choice and the number of the output token of each beside them."""

    @abstractmethod
    def edit(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> None:
        """Penalties, bias, forbidden ids, in place."""

    @abstractmethod
    def draw(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> Tensor:
        """int64 ids on the device, one per row; anything for a row without a valid token."""

    @abstractmethod
    def keep(self, logits_SV: Tensor) -> Tensor:
        """Of a copy of the model's own logits, what log-probabilities are read from later."""

    @abstractmethod
    def logprobs(self, kept_SV: Tensor, ids_SM: Tensor) -> Tensor:
        """float32 [S, M]."""


class TorchDraws(RowDraws):
    """The inverse of the distribution function, at a number that depends on the row's key alone."""

    def edit(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> None:
        for row, choice, index in zip(rows, choices, indices, strict=True):
            choice.edits.apply(logits_RV[row], index)

    def draw(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> Tensor:
        device = logits_RV.device

        def per_row(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        random = [uniform(choice.seed, index, choice.choice) for choice, index in zip(choices, indices, strict=True)]
        params = [choice.params for choice in choices]
        logits_SV = logits_RV[torch.tensor(rows, device=device)]
        # From the top, so that no finite logit overflows upwards; -inf - -inf of an empty row is made 0.
        from_top_SV = (logits_SV - logits_SV.amax(1, keepdim=True)).nan_to_num_(nan=0.0)
        kept_SV = filter_logits(
            from_top_SV / per_row([choice.temperature for choice in choices]).float()[:, None],
            torch.tensor([each.top_k for each in params], device=device),
            per_row([each.top_p for each in params]),
            per_row([each.min_p for each in params]).float(),
        )
        # In the order of the vocabulary: the order of likelihood would change with the last bit of a logit.
        mass_SV = kept_SV.softmax(1).cumsum(1, dtype=torch.float64)
        target_S1 = (per_row(random) * mass_SV[:, -1])[:, None]
        return torch.searchsorted(mass_SV, target_S1, right=True)[:, 0].clamp(max=logits_RV.shape[1] - 1)

    def keep(self, logits_SV: Tensor) -> Tensor:
        return logits_SV.log_softmax(1)

    def logprobs(self, kept_SV: Tensor, ids_SM: Tensor) -> Tensor:
        return kept_SV.gather(1, ids_SM)


class KernelDraws(RowDraws):
    """One launch for the penalties of all rows, one for all draws. The host waits for neither.

    A seed gives other tokens than `TorchDraws` gives: that one uses a number per row, this one a number per token.
    """

    def edit(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> None:
        from headrace_worker.kernels.penalties import SeenTokens, penalise

        three = [
            (choice.params.repetition_penalty, choice.params.presence_penalty, choice.params.frequency_penalty)
            for choice in choices
        ]
        seen = [(row, choice.edits.seen(), each) for row, choice, each in zip(rows, choices, three, strict=True)]
        penalise(logits_RV, SeenTokens.of([entry for entry in seen if entry[1]], logits_RV.device))
        for row, choice, index in zip(rows, choices, indices, strict=True):
            choice.edits.constrain(logits_RV[row], index)

    def draw(self, logits_RV: Tensor, rows: Sequence[int], choices: Sequence[Choice], indices: Sequence[int]) -> Tensor:
        from headrace_worker.kernels.draw import DrawParams, draw

        device, vocab_size = logits_RV.device, logits_RV.shape[1]
        keys = [draw_key(choice.seed, index, choice.choice) for choice, index in zip(choices, indices, strict=True)]
        params = [choice.params for choice in choices]
        whole = upload([rows, keys], torch.int64, device)
        shares = upload(
            [
                [choice.temperature for choice in choices],
                [each.top_p for each in params],
                [each.min_p for each in params],
            ],
            torch.float32,
            device,
        )
        top_k_S = upload([min(each.top_k, vocab_size) for each in params], torch.int32, device)
        return draw(logits_RV, DrawParams(whole[0], whole[1], top_k_S, shares[0], shares[1], shares[2]))

    def keep(self, logits_SV: Tensor) -> Tensor:
        return logits_SV

    def logprobs(self, kept_SV: Tensor, ids_SM: Tensor) -> Tensor:
        from headrace_worker.kernels.logprobs import gather_logprobs

        return gather_logprobs(kept_SV, ids_SM)


def select_draws(kernels: bool) -> RowDraws:
    """Chosen once, with the attention."""
    return KernelDraws() if kernels else TorchDraws()
