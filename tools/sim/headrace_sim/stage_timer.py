"""How long a step takes in each stage of a pipeline: its share of the layers, and what it hands on or draws.

By the roofline, for millions of steps, as `step_timer` has it of the whole. Together the stages take what
`Roofline.stage_times_s` says; the time of the host is not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace_sim.step_timer import RowTable, StepTimer
from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import StepModel

_ATTENTION = ("prefill_attention", "decode_attention")


class StageTimes(Protocol):
    """How long a load takes in each stage, in seconds."""

    def stages_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> list[float]: ...


class StageTimer:
    """Steps of one replica whose layers lie in stages."""

    def __init__(self, roofline: Roofline) -> None:
        self._roofline, self._steps = roofline, StepTimer(roofline)
        self._shares = [count / roofline.shape.num_layers for count in roofline.layout.stage_layers(roofline.shape)]
        self._layers, self._sends = RowTable(self._layers_s), RowTable(self._send_s)
        self._outputs: dict[int, float] = {}

    def stages_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> list[float]:
        """Seconds in each stage, of the load that `StepTimer.step_s` takes."""
        num_rows = num_decodes + sum(num_tokens for num_tokens, _ in chunks)
        layers_s = self._layers.at(num_rows) + self._steps.attention_s(chunks, num_decodes, num_context_tokens)
        send_s = self._sends.at(num_rows)
        times = [share * layers_s + send_s for share in self._shares]
        times[-1] += self._output_s(num_decodes + len(chunks)) - send_s
        return times

    def _layers_s(self, num_rows: int) -> float:
        """All layers without attention."""
        ops = self._roofline.layer(StepLoad((Prefill(num_rows),)))
        return self._roofline.shape.num_layers * sum((op.time_s for op in ops if op.name not in _ATTENTION), 0.0)

    def _send_s(self, num_rows: int) -> float:
        return self._roofline.send(StepLoad((Prefill(num_rows),))).time_s

    def _output_s(self, num_sampled: int) -> float:
        found = self._outputs.get(num_sampled)
        if found is None:
            ops = self._roofline.output(StepLoad((), num_sampled, 0))
            found = self._outputs[num_sampled] = sum((op.time_s for op in ops), 0.0)
        return found


class FittedStageTimer:
    """Steps by the coefficients that a replica fitted to its own, in the roofline's proportion of the stages."""

    def __init__(self, model: StepModel, stages: StageTimer) -> None:
        self._model, self._stages = model, stages

    def stages_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> list[float]:
        """As `StageTimer.stages_s`."""
        prefills = tuple(Prefill(num_tokens, num_cached) for num_tokens, num_cached in chunks)
        seconds = self._model.predict(StepLoad(prefills, num_decodes, num_context_tokens))
        times = self._stages.stages_s(chunks, num_decodes, num_context_tokens)
        factor = seconds / sum(times, 0.0)
        return [each * factor for each in times]


@dataclass(frozen=True)
class Pipeline:
    """The stages of the replicas of a pool.

    `host_s` is taken by the host for each plan, before the first stage. `host_computes`: the host itself is the first
    stage, as on a CPU, and hears of tokens only between its plans.
    """

    timer: StageTimes
    num_stages: int
    host_s: float = 0.0
    host_computes: bool = False
