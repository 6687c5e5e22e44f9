"""Of a prefill and a decode replica the one that failed is not picked again, and the other one may be."""

import pytest

from headrace_gateway.lifecycle.events import Decision
from headrace_gateway.lifecycle.outputs import Output, Route
from headrace_gateway.lifecycle.placement import Placement


def routed(prefill_id: str) -> tuple[Placement, list[Output]]:
    placement, out = Placement(1), list[Output]()
    placement.route(out)
    assert placement.current is not None
    placement.current.decision = Decision("d", "decoder", "e", 1.0, prefill_id)
    return placement, out


@pytest.mark.parametrize(
    ("prefill_id", "reason", "excluded"),
    [
        ("prefiller", "prefill_lost", "prefiller"),
        ("prefiller", "kv_expired", "prefiller"),
        ("prefiller", "worker_lost", "decoder"),
        ("", "prefill_lost", "decoder"),
    ],
)
def test_who_failed_is_excluded(prefill_id: str, reason: str, excluded: str) -> None:
    placement, out = routed(prefill_id)
    assert placement.current is not None
    placement.abandon(placement.current, reason, out)
    placement.route(out)
    assert out[-1] == Route(2, (excluded,))
