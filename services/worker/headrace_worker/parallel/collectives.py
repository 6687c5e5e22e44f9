"""A rank's collectives over torch.distributed (NCCL on GPUs, gloo on CPU). Knows no layer and no plan.

Within a tensor group: sums, maxima, gathering to its first rank and hearing from it. Between stages: hidden states to
the rank of the same number in the next one. Sums of more than two numbers depend on their order, and libraries choose
it by size: `ordered` adds in rank order, so that a row's bits do not depend on how many rows there are.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from headrace_worker.parallel.flight_log import FlightLog, FlightRecorder
from headrace_worker.parallel.place import Place

# The leader's watch is first to give up, for it can say who waits for whom.
LIBRARY_MARGIN_S = 2.0
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class CollectiveFailed(Exception):
    """The library gave up: a peer is gone, or did something else."""


@dataclass(frozen=True)
class Meeting:
    """Where the ranks meet: files that all of them have open, and how long they wait for one another."""

    store_fd: int
    log_fd: int
    timeout_s: float


class Collectives:
    """Made once per process, by all ranks of the group at the same time."""

    def __init__(self, place: Place, device: torch.device, meeting: Meeting, ordered: bool) -> None:
        self.place = place
        self.recorder = FlightRecorder(FlightLog(place.layout.num_devices, meeting.log_fd), place.rank)
        self.device, self._ordered = device, ordered
        self._sending: tuple[dist.Work, Tensor] | None = None
        num_ranks = place.layout.num_devices
        timeout = datetime.timedelta(seconds=meeting.timeout_s + LIBRARY_MARGIN_S)
        for library in ("GLOO", "NCCL"):  # a group lives on one host: nobody else may reach it
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
        store = dist.FileStore(f"/dev/fd/{meeting.store_fd}", num_ranks)  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=num_ranks, timeout=timeout)
        groups = [dist.new_group(place.tensor_group(stage), timeout) for stage in range(place.layout.pipeline)]
        self._group = groups[place.stage]

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the tensor group; may be in place."""
        with self._recorded("all_reduce", x):
            if not self._ordered or self.place.layout.tensor == 2:  # two numbers add up the same either way
                dist.all_reduce(x, group=self._group)
                return x
            parts = [torch.empty_like(x) for _ in range(self.place.layout.tensor)]
            dist.all_gather(parts, x, group=self._group)
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def maximum(self, x: Tensor) -> Tensor:
        """The largest of each number over the tensor group, in place."""
        with self._recorded("maximum", x):
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self._group)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """The tensor group's first rank's, in place."""
        with self._recorded("broadcast", x):
            dist.broadcast(x, self.place.tensor_group()[0], group=self._group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """The group's last dimensions one after the other, on its first rank; the others get what they gave."""
        first = self.place.tensor_rank == 0
        parts = [torch.empty_like(x) for _ in range(self.place.layout.tensor)] if first else None
        with self._recorded("gather", x):
            dist.gather(x, parts, dst=self.place.tensor_group()[0], group=self._group)
        return x if parts is None else torch.cat(parts, dim=-1)

    def hand_on(self, hidden_TE: Tensor) -> None:
        """To the next stage; returns before it has arrived."""
        self.finish_sending()
        with self._recorded("send", hidden_TE):
            work = dist.isend(hidden_TE, self.place.behind)
        assert work is not None, "the default group has this rank"
        self._sending = work, hidden_TE

    def finish_sending(self) -> None:
        """Wait for what was handed on."""
        if self._sending is not None:
            work, hidden_TE = self._sending
            self._sending = None
            with self._recorded("send", hidden_TE):
                work.wait()

    def take_over(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """From the stage before."""
        hidden_TE = torch.empty(shape, dtype=dtype, device=self.device)
        with self._recorded("receive", hidden_TE):
            dist.recv(hidden_TE, self.place.before)
        return hidden_TE

    def close(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _recorded(self, kind: str, x: Tensor) -> Iterator[None]:
        self.recorder.enter(kind, x.nbytes)
        try:
            yield
        except RuntimeError as error:
            raise CollectiveFailed(f"{kind} of {x.nbytes} bytes: {str(error).splitlines()[0]}") from error
        finally:
            self.recorder.leave()
