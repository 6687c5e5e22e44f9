"""The phase that broke a budget is the one furthest over what it was allowed."""

import pytest

from headrace_gateway.blame import Allowances, late_first_text, late_gap

ALLOWED = Allowances(ttft_s=0.7, predicted_prefill_s=0.42, reserve_s=0.05)


@pytest.mark.parametrize(
    "spent, phase",
    [
        ({"gate": 0.01, "route": 0.005, "queue": 0.5, "prefill": 0.4, "deliver": 0.0}, "queue"),
        ({"gate": 0.01, "route": 0.005, "queue": 0.2, "prefill": 0.9, "deliver": 0.0}, "prefill"),
        ({"gate": 0.6, "route": 0.005, "queue": 0.0, "prefill": 0.42, "deliver": 0.0}, "gate"),
        ({"gate": 0.01, "route": 8.0, "queue": 0.0, "prefill": 0.42, "deliver": 0.0}, "route"),
        ({"gate": 0.01, "route": 0.005, "queue": 0.1, "prefill": 0.42, "deliver": 0.9}, "deliver"),
        # The longest is not always to blame: it was predicted to take so long.
        ({"gate": 0.01, "route": 0.005, "queue": 0.4, "prefill": 0.43, "deliver": 0.0}, "queue"),
    ],
)
def test_the_phase_furthest_over_its_allowance_is_to_blame(spent: dict[str, float], phase: str) -> None:
    assert late_first_text(ALLOWED, spent) == phase


def test_a_gap_that_the_worker_did_not_make_was_made_on_the_way() -> None:
    assert late_gap(0.1, worst_at_worker_s=0.2) == "decode"
    assert late_gap(0.1, worst_at_worker_s=0.09) == "deliver"
