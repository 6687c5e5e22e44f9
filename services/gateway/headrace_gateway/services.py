"""What every session shares: the upstreams, the books, and who this gateway is."""

from dataclasses import dataclass
from typing import Protocol

from headrace_gateway.books import Books
from headrace_gateway.buffers import Buffers
from headrace_gateway.instruments import Instruments
from headrace_gateway.pace import Pace
from headrace_gateway.renewals import Renewals
from headrace_gateway.sessions import Sessions
from headrace_gateway.settler import Settler
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_gateway.upstreams.router import RouterClient
from headrace_gateway.upstreams.screen import ScreenClient
from headrace_gateway.upstreams.worker_pool import WorkerPool


class Versioned(Protocol):
    """Whatever knows the snapshot in force."""

    @property
    def version(self) -> int: ...


@dataclass(frozen=True)
class Services:
    """Built once by `__main__`."""

    gateway_id: str
    snapshot: Versioned
    policy: PolicyClient
    router: RouterClient
    workers: WorkerPool
    screen: ScreenClient
    settler: Settler
    renewals: Renewals
    buffers: Buffers
    sessions: Sessions
    pace: Pace
    instruments: Instruments
    books: Books

    @property
    def snapshot_version(self) -> int:
        return self.snapshot.version
