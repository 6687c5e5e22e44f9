"""What steps leave behind for those who watch: where their time went, how full they were, what of the card they used.

Decides nothing; knows no request.
"""

from __future__ import annotations

from headrace_kit import telemetry
from headrace_worker.engine import EngineOutput
from headrace_worker.perf.live import achieved
from headrace_worker.perf.resources import Binding
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.scheduling.load import Load

_SECONDS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PARTS = ("plan", "forward", "sample", "host_gap")
_step = telemetry.histogram(
    "worker_step_seconds", "Parts of a step: plan, forward, sample, and the device waiting", ["part"], buckets=_SECONDS
)
_by_part = [_step.labels(part) for part in _PARTS]
_rows = telemetry.histogram("worker_batch_rows", "Sequences in a step", buckets=_SIZES)
_step_tokens = telemetry.histogram("worker_batch_tokens", "Tokens in a step", buckets=_SIZES)
_occupancy = telemetry.gauge("worker_batch_occupancy_ratio", "Sequences of the last step, of those that may run")
_collective = telemetry.counter("worker_collective_seconds_total", "Time in collectives of the replica's ranks")
_stages = telemetry.counter("worker_stage_seconds_total", "Time of pipeline stages at work and without", ["state"])
_busy, _idle = _stages.labels("busy"), _stages.labels("idle")
_resources = telemetry.gauge(
    "worker_resource_ratio",
    "Share of a resource that steps use: work at published peak rates over their time; of capacity what is held",
    ["resource"],
)


class StepRecords:
    """`max_running`: places of a step. The roofline comes with the loaded model; None where there is none to tell."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self.roofline: Roofline | None = None
        self.binding: Binding | None = None

    def note(self, output: EngineOutput) -> None:
        _collective.inc(output.times.collective_s)
        _busy.inc(output.times.busy_s)
        _idle.inc(output.times.idle_s)
        split = output.split
        if split is None:
            return
        for part, seconds in zip(_by_part, split[: len(_PARTS)], strict=True):
            part.observe(seconds)
        _rows.observe(split.num_rows)
        _step_tokens.observe(split.num_tokens)
        _occupancy.set(split.num_rows / self._max_running)
        if output.computed is not None and self.roofline is not None:
            took_s = split.forward_s + split.sample_s
            self._use(self.roofline, output.computed, took_s, output.load)

    def _use(self, roofline: Roofline, computed: StepLoad, took_s: float, load: Load) -> None:
        """Capacity binds when requests wait and the pool has no room to promise them."""
        used = load.num_promised_pages / max(1, load.num_total_pages)
        next_share = 2.0 if load.num_waiting and used > 0.95 else used
        self.binding = achieved(roofline, computed, took_s, used, next_share)
        for resource, share in self.binding.shares.items():
            _resources.labels(resource.value).set(share)
