"""KV on its way from replicas that prefill to those that decode; production's schedulers say what is to travel.

    D: reserved, PagesWanted --> P: prompt computed, chunk by chunk --> D's link, one transfer after the other
    D: received, a prefix hit of prompt - 1                         <-- ack: P's pages leave quarantine

Knows how long bytes take and who hears what when a side is lost; no token and no decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from headrace_router.pairing import Link
from headrace_sim.clock import Clock
from headrace_sim.errors import SimulationError
from headrace_sim.job import Job
from headrace_sim.replica import Replica
from headrace_worker.scheduling.events import PagesWanted
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.scheduling.request import HandOff, Request

# Handles of prefills and of responses are never the same.
_FIRST_HANDLE = 1 << 40


@dataclass(slots=True, eq=False)
class Transfer:
    """One prompt that travels; `wanted` is its handle at the replica that decodes."""

    wanted: int
    decode: Replica
    prefill: Replica
    link: Link


class HandOffs:
    """All of a fleet. `links`: how KV comes in, by pool; `find`: a replica by its id, if it is there."""

    def __init__(self, clock: Clock, links: Mapping[str, Link], find: Callable[[str], Replica | None]) -> None:
        self._clock, self._links, self._find = clock, links, find
        self._open: dict[int, Transfer] = {}
        self._handles = count(_FIRST_HANDLE)
        self._free_s: dict[str, float] = {}
        self.num_begun = self.num_acknowledged = self.num_aborted = 0
        self.num_bytes = 0
        self._num_beginning = 0

    def wanted(self, decode: Replica, job: Job, event: PagesWanted) -> None:
        """A replica has reserved a request's future and asks for its pages."""
        self.num_begun += 1
        self._num_beginning += 1
        # Not from within the plan that asks.
        self._clock.after(0.0, self._begin, decode, job, event)

    def exported(self, export: PageExport) -> None:
        """A chunk is computed: its pages travel when the link has carried what came before them."""
        transfer = self._open.get(export.handle)
        if transfer is None:
            return
        link, place = transfer.link, transfer.decode.id
        num_bytes = len(export.pages) * link.page_tokens * link.kv_bytes_per_token
        self.num_bytes += num_bytes
        arrives_s = max(self._clock.now, self._free_s.get(place, 0.0)) + num_bytes / link.bytes_per_s
        self._free_s[place] = arrives_s
        if export.is_last:
            self._clock.at(arrives_s + link.latency_s, self._arrive, export.handle)

    def ended(self, handle: int, reason: str) -> None:
        """A prefill ended in its engine: its pages are on their way, or will never be."""
        if reason != "prefilled":
            # Not from within the step that told it.
            self._clock.after(0.0, self._fail, handle)

    def lose(self, replica: Replica) -> None:
        """A dead replica: its prompts are lost to those who wait for them, and nobody reads what was meant for it."""
        for handle, transfer in list(self._open.items()):
            if replica in (transfer.prefill, transfer.decode):
                self._fail(handle)

    def check(self) -> None:
        """Raises SimulationError unless begun = acknowledged + aborted + under way."""
        closed = self.num_acknowledged + self.num_aborted + len(self._open) + self._num_beginning
        if self.num_begun != closed:
            raise SimulationError(f"hand-offs do not balance: {self.num_begun} begun, {closed} ended or under way")

    def _begin(self, decode: Replica, job: Job, event: PagesWanted) -> None:
        self._num_beginning -= 1
        if decode.jobs.get(event.handle) is not job:
            self.num_aborted += 1  # it was lost with the replica that asked
            return
        handle, prefill = next(self._handles), self._find(job.prefill_id)
        if prefill is None or prefill.state != "ready":
            self.num_aborted += 1
            decode.receive_failed(event.handle)
            return
        self._open[handle] = Transfer(event.handle, decode, prefill, self._links[decode.pool])
        prompt_ids = job.prompt_ids[: event.num_tokens]
        prefill.prefill(
            Request(handle, str(handle), 1, prompt_ids, 1, hand_off=HandOff.SEND, from_page=event.first_page)
        )

    def _arrive(self, handle: int) -> None:
        transfer = self._open.pop(handle, None)
        if transfer is None:
            return
        self.num_acknowledged += 1
        transfer.decode.received(transfer.wanted)
        transfer.prefill.end_transfer(handle)

    def _fail(self, handle: int) -> None:
        """Either side hears it, if it is there."""
        transfer = self._open.pop(handle, None)
        if transfer is None:
            return
        self.num_aborted += 1
        transfer.decode.receive_failed(transfer.wanted)
        transfer.prefill.abandon(handle)
