"""A pull is settled whatever ended it: no page stays in quarantine and no request waits for pages that do not come."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_worker.kv_pulls import Pulls, _Pull
from headrace_worker.messages import EndTransfer, ReceiveFailed
from headrace_worker.transfer.destination import Destination
from headrace_worker.transfer.pages import Extent


async def test_a_pull_that_crashes_is_given_up_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    nothing: Any = None
    pulls = Pulls(nothing, nothing, sent.append, nothing)
    wanted: Any = SimpleNamespace(handle=7)
    target: Any = SimpleNamespace(close=lambda: None)
    pull = _Pull(wanted, nothing, "t", Destination(Extent(0, 1, 0, 2), 0.0, 5.0), target)
    pulls._pulls[7] = pull

    async def crash(_: _Pull) -> None:
        raise RuntimeError("broke")

    monkeypatch.setattr(pulls, "_receive", crash)
    with pytest.raises(RuntimeError):
        await pulls._run(pull)
    assert sent == [ReceiveFailed(7, "prefill_lost"), EndTransfer(7)]
    assert not pulls._pulls
