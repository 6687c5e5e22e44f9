"""What a replica's users see in a closed loop: TTFT and time per output token at a concurrency. Arithmetic on steps.

Mean values, no distributions: each of `concurrency` users sends its next request when the last one ends. Queueing
beyond means belongs to a simulator. Host time is not in it.
"""

from dataclasses import dataclass, replace

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import DEFAULT_CHUNK_TOKENS

NUM_ITERATIONS = 20


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
    roofline: Roofline, load: ClosedLoop, max_running: int, chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> Prediction:
    """Steady state of a closed loop of which at most `max_running` sequences hold KV.

    While a sequence decodes its output, each of the others goes through one prefill; every chunk makes the steps it is
    in longer. A user beyond `max_running` waits for a place: by Little's law the whole cycle is users / throughput.
    A pipeline has as many steps in flight as stages, each with its share of the sequences.
    """
    if max_running < 1:
        raise PerfError("max_running", f"must be at least 1, not {max_running}")
    running = min(load.concurrency, max_running)
    share = -(-running // roofline.layout.pipeline)
    others = StepLoad((), share - 1, (share - 1) * load.mean_context)
    decode_s = roofline.step_time_s(StepLoad((), share, share * load.mean_context))
    prefill_s = _prefill_s(roofline, load.num_prompt_tokens, chunk_tokens, others)
    num_chunks = -(-load.num_prompt_tokens // chunk_tokens)
    # The decodes that share a chunk's step get their token from it: only what the chunk adds is lost to them.
    stall_s = prefill_s - num_chunks * (roofline.step_time_s(others) if share > 1 else 0.0)
    tpot_s = decode_s + (running - 1) * stall_s / load.num_output_tokens
    ttft_s = _first_token_s(load, running, prefill_s, stall_s, tpot_s)
    cycle_s = ttft_s + (load.num_output_tokens - 1) * tpot_s
    waiting_s = cycle_s * (load.concurrency / running - 1)
    rate = running * load.num_output_tokens / cycle_s
    return Prediction(ttft_s + waiting_s, tpot_s, running, rate)


def burst_ttft_s(
    roofline: Roofline, num_prompt_tokens: int, num_requests: int, chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> float:
    """Mean TTFT of `num_requests` equal prompts that arrive at once at an idle replica and are computed in order.

    Steps are filled to `chunk_tokens`; prompts done decode beside the rest.
    """
    done, now_s, total_s, num_finished = 0, 0.0, 0.0, 0
    while num_finished < num_requests:
        until = min(done + chunk_tokens, num_requests * num_prompt_tokens)
        touched = range(done // num_prompt_tokens, -(-until // num_prompt_tokens))
        chunks = tuple(_overlap(index * num_prompt_tokens, num_prompt_tokens, done, until) for index in touched)
        now_s += roofline.step_time_s(StepLoad(chunks, num_finished, num_finished * num_prompt_tokens))
        newly = until // num_prompt_tokens - num_finished
        total_s += newly * now_s
        num_finished, done = num_finished + newly, until
    return total_s / num_requests


def _overlap(start: int, length: int, done: int, until: int) -> Prefill:
    """The part of a prompt that lies at [start, start + length) of the line of all prompts, within [done, until)."""
    first, last = max(start, done), min(start + length, until)
    return Prefill(last - first, first - start)


def _prefill_s(roofline: Roofline, num_tokens: int, chunk_tokens: int, beside: StepLoad) -> float:
    """Seconds of the steps that compute a prompt chunk by chunk beside the given decodes."""
    seconds, done = 0.0, 0
    while done < num_tokens:
        chunk = Prefill(min(chunk_tokens, num_tokens - done), done)
        seconds += roofline.step_time_s(replace(beside, prefills=(chunk,)))
        done += chunk.num_tokens
    return seconds


def _first_token_s(load: ClosedLoop, running: int, prefill_s: float, stall_s: float, tpot_s: float) -> float:
    """Half of the running step, the prefills of others found in progress or queued, and one's own.

    The prefill server is busy for the share u of a cycle; an arrival finds on average u / (1 - u) / 2 prefills ahead
    (Pollaczek-Khinchine for constant service).
    """
    if running == 1:
        return prefill_s
    ttft_s = prefill_s
    for _ in range(NUM_ITERATIONS):
        cycle_s = ttft_s + (load.num_output_tokens - 1) * tpot_s
        busy = min(0.95, (running - 1) * stall_s / cycle_s)
        ttft_s = tpot_s / 2 + prefill_s + stall_s * busy / (1 - busy) / 2
    return ttft_s
