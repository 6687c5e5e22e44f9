"""What a replica's users see in a closed loop: TTFT and time per output token at a concurrency. Arithmetic on steps.

Mean values, no distributions: each of `concurrency` users sends its next request when the last one ends. Queueing
beyond means belongs to a simulator. Host time is not in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.pipeline import StageLine, line_time_s
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import DEFAULT_CHUNK_TOKENS

NUM_ITERATIONS = 20
# Enough rows that products are bound by arithmetic on every card.
PIPELINE_CHUNK_TOKENS = 1024
_NOTHING = StepLoad()


@dataclass(frozen=True)
class ClosedLoop:
    """Requests of `num_prompt_tokens` and `num_output_tokens` by `concurrency` users without think time."""

    num_prompt_tokens: int
    num_output_tokens: int
    concurrency: int

    def __post_init__(self) -> None:
        for field in ("num_prompt_tokens", "num_output_tokens", "concurrency"):
            if getattr(self, field) < 1:
                raise PerfError(field, f"must be at least 1, not {getattr(self, field)}")

    @property
    def mean_context(self) -> int:
        """Tokens in the KV of a sequence halfway through its output."""
        return self.num_prompt_tokens + self.num_output_tokens // 2


@dataclass(frozen=True)
class Prediction:
    """Mean seconds to the first token (waiting for a place included) and per further one, `num_running` at once."""

    ttft_s: float
    tpot_s: float
    num_running: int
    output_tokens_per_s: float


def predict_closed_loop(
    roofline: Roofline, load: ClosedLoop, max_running: int, chunk_tokens: int | None = None
) -> Prediction:
    """Steady state of a closed loop of which at most `max_running` sequences hold KV.

    While a sequence decodes its output, each of the others goes through one prefill; every chunk makes the steps it is
    in longer. A user beyond `max_running` waits for a place: by Little's law the whole cycle is users / throughput.
    A pipeline has as many steps in flight as stages, each with its share of the sequences. `chunk_tokens`: of a prompt
    in one step; None as `chunk_tokens_of` has it.
    """
    if max_running < 1:
        raise PerfError("max_running", f"must be at least 1, not {max_running}")
    running = min(load.concurrency, max_running)
    costs = _costs(roofline, load, running, chunk_tokens or chunk_tokens_of(roofline.layout))
    fill_share, ttft_s = 1.0, costs.prefill_s
    for _ in range(NUM_ITERATIONS):
        tpot_s = costs.round_s + (running - 1) * (costs.stall_s + fill_share * costs.fill_s) / load.num_output_tokens
        if running == 1:
            break
        cycle_s = ttft_s + (load.num_output_tokens - 1) * tpot_s
        busy = min(0.95, (running - 1) * costs.stall_s / cycle_s)
        fill_share = (1 - busy) / (1 + (running - 1) * costs.fill_s / cycle_s)
        ttft_s = tpot_s / 2 / costs.num_plans + costs.prefill_s + costs.stall_s * busy / (1 - busy) / 2
    cycle_s = ttft_s + (load.num_output_tokens - 1) * tpot_s
    waiting_s = cycle_s * (load.concurrency / running - 1)
    rate = running * load.num_output_tokens / cycle_s
    return Prediction(ttft_s + waiting_s, tpot_s, running, rate)


def burst_ttft_s(
    roofline: Roofline, num_prompt_tokens: int, num_requests: int, chunk_tokens: int | None = None
) -> float:
    """Mean TTFT of `num_requests` equal prompts that arrive at once at an idle replica and are computed in order.

    Steps are filled to `chunk_tokens`; prompts done decode beside the rest.
    """
    chunk_tokens = chunk_tokens or chunk_tokens_of(roofline.layout)
    line = StageLine(roofline.layout.pipeline)
    done, total_s, num_finished = 0, 0.0, 0
    while num_finished < num_requests:
        until = min(done + chunk_tokens, num_requests * num_prompt_tokens)
        touched = range(done // num_prompt_tokens, -(-until // num_prompt_tokens))
        chunks = tuple(_overlap(index * num_prompt_tokens, num_prompt_tokens, done, until) for index in touched)
        load = StepLoad(chunks, num_finished, num_finished * num_prompt_tokens)
        now_s = line.enter(roofline.stage_times_s(load))
        newly = until // num_prompt_tokens - num_finished
        total_s += newly * now_s
        num_finished, done = num_finished + newly, until
    return total_s / num_requests


def _overlap(start: int, length: int, done: int, until: int) -> Prefill:
    """The part of a prompt that lies at [start, start + length) of the line of all prompts, within [done, until)."""
    first, last = max(start, done), min(start + length, until)
    return Prefill(last - first, first - start)


@dataclass(frozen=True)
class _Costs:
    """What the mean values are made of, in seconds.

    `round_s`: a token of every sequence, no prompt among them. `prefill_s`: a prompt that finds no other, to its first
    token. `stall_s`: by how much it holds up all the others, in the stage that takes longest; `fill_s`: and by how much
    more if it comes alone, for then the other stages wait as it fills and drains the pipeline.
    """

    round_s: float
    prefill_s: float
    stall_s: float
    fill_s: float
    num_plans: int


def _costs(roofline: Roofline, load: ClosedLoop, running: int, chunk_tokens: int) -> _Costs:
    depth = roofline.layout.pipeline
    share = -(-running // depth)
    num_plans = -(-running // share)
    decodes = roofline.stage_times_s(StepLoad((), share, share * load.mean_context))
    round_s = max(sum(decodes), num_plans * max(decodes))
    others = StepLoad((), share - 1, (share - 1) * load.mean_context)
    chunks = [roofline.stage_times_s(each) for each in chunks_of(load.num_prompt_tokens, chunk_tokens, others)]
    # The decodes that share a chunk's step get their token from it: only what the chunk adds is lost to them.
    beside_s = max(roofline.stage_times_s(others)) if share > 1 else 0.0
    stall_s = sum(max(each) for each in chunks) - len(chunks) * beside_s
    fill_s = sum(chunks[0]) - max(chunks[0]) - round_s * (depth - 1) / depth
    return _Costs(round_s, line_time_s(chunks), stall_s, max(0.0, fill_s), num_plans)


def chunk_tokens_of(layout: Layout) -> int:
    """Prompt tokens of one step: in a pipeline smaller chunks, for they follow each other through its stages."""
    return DEFAULT_CHUNK_TOKENS if layout.pipeline == 1 else PIPELINE_CHUNK_TOKENS


def chunks_of(num_tokens: int, chunk_tokens: int, beside: StepLoad = _NOTHING) -> Iterator[StepLoad]:
    """The steps that compute a prompt, beside the given decodes."""
    for done in range(0, num_tokens, chunk_tokens):
        yield replace(beside, prefills=(Prefill(min(chunk_tokens, num_tokens - done), done),))


def prefill_time_s(roofline: Roofline, num_tokens: int) -> float:
    """Seconds of a prompt alone on an idle replica."""
    chunks = chunks_of(num_tokens, chunk_tokens_of(roofline.layout))
    return line_time_s([roofline.stage_times_s(each) for each in chunks])
