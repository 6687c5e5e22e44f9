"""Whether another replica should prefill a prompt for the one that decodes it, and which. Pure.

    worth it:  delay that the prompt would cause to the streams that run at the decode replica
             > time to move its KV there + what it waits longer for its turn at the prefill replica

both in seconds of one stream: each running stream is delayed by the whole prompt, the request itself by the move.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace_router.prediction import CHUNK_TOKENS
from headrace_router.scoring import Ask, View, num_new_tokens

LEAST_PAGES = 2
"""As the worker has it: what misses fewer pages is computed where it is wanted."""


class Link(NamedTuple):
    """How KV comes in at a decode replica: bytes per second and seconds per transfer, as it measured them."""

    kv_bytes_per_token: int = 0
    page_tokens: int = 16
    bytes_per_s: float = 1e9
    latency_s: float = 0.01

    def transfer_s(self, num_tokens: int) -> float:
        """Whole pages travel."""
        num_pages = -(-num_tokens // self.page_tokens)
        return self.latency_s + num_pages * self.page_tokens * self.kv_bytes_per_token / self.bytes_per_s


class Pairing(NamedTuple):
    """`prefill` is None where the prompt stays whole; `why` is a clause for the record."""

    prefill: View | None
    why: str


def interference_s(view: View, num_tokens: int, num_cached: int) -> float:
    """Delay of all streams that run there, added up, if so many prompt tokens were computed beside them.

    The steps themselves would be taken anyway: only what the prompt adds to them counts.
    """
    num_chunks = -(-num_tokens // CHUNK_TOKENS)
    alone_s = view.cost.prefill_s(num_tokens, num_cached) - num_chunks * view.cost.step
    num_streams = view.num_running if view.fresh else view.num_in_flight
    return max(0.0, alone_s) * num_streams


def pair(ask: Ask, decode: View, prefills: Sequence[View], link: Link) -> Pairing:
    """`prefills`: replicas whose KV fits; those that are not ready, failing or excluded are passed over."""
    assert decode.role == "decode", "only a replica that decodes gets pages"
    if ask.budget.statistical:
        return Pairing(None, "whole: its class may be preempted, and pages that others write to cannot be taken back")
    num_new = num_new_tokens(ask, decode)
    num_cached = ask.num_prompt_tokens - num_new
    num_moved = num_new - 1
    if -(-num_moved // link.page_tokens) < LEAST_PAGES:
        return Pairing(None, f"whole: {num_new} tokens to compute")
    able = [view for view in prefills if _is_able(ask, view)]
    if not able:
        return Pairing(None, "whole: no prefill replica can take it")
    prefill = min(able, key=lambda view: (view.queue_s, view.num_requests))
    avoided_s = interference_s(decode, num_new, num_cached)
    transfer_s = link.transfer_s(num_moved)
    longer_s = max(0.0, prefill.queue_s - decode.queue_s)
    numbers = f"{avoided_s * 1000:.3g} ms of delay to {decode.num_running} streams, transfer {transfer_s * 1000:.3g} ms"
    if longer_s:
        numbers += f" after {longer_s * 1000:.3g} ms in its queue"
    if avoided_s > transfer_s + longer_s:
        return Pairing(prefill, f"split: {prefill.id} prefills, avoids {numbers}")
    return Pairing(None, f"whole: would avoid {numbers}")


def _is_able(ask: Ask, view: View) -> bool:
    fits = not ask.revisions or view.revision in ask.revisions
    serves = not view.classes or ask.slo_class in view.classes
    ready = view.connected and view.state == "ready" and not view.breaker_open
    roomy = not view.fresh or not 0 < view.max_waiting <= view.num_waiting
    return fits and serves and ready and roomy and view.role == "prefill" and view.id not in ask.excluded


def break_even_tokens(decode: View, link: Link, most: int = 100_000) -> int | None:
    """The shortest prompt, nothing of it cached, that is worth moving; None if none up to `most` is."""
    low, high = 1, most

    def pays(num_tokens: int) -> bool:
        return interference_s(decode, num_tokens, 0) > link.transfer_s(num_tokens - 1)

    if not pays(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle + 1, high)
    return low
