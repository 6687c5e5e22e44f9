"""A replica refuses to start with sizes that cannot work, and says which."""

from __future__ import annotations

import pytest

from headrace_worker.scheduling.limits import LimitsError
from tests.unit.worker.scheduling.fakes import make_limits


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sequence_tokens", 0),
        ("max_sequence_tokens", -1),
        ("max_chunk_tokens", 0),
        ("max_chunk_tokens", 15),
        ("page_tokens", 0),
        ("page_tokens", 24),
        ("num_pages", 0),
        ("max_running", 0),
        ("max_waiting", 0),
        ("max_step_tokens", 0),
        ("max_step_tokens", 31),
        ("vocab_size", 0),
        ("patience_s", float("nan")),
        ("end_token_ids", frozenset({260})),
        ("end_token_ids", frozenset({-1})),
    ],
)
def test_a_bad_size_is_refused_by_name(field: str, value: object) -> None:
    """B49, and the sizes that no batch could hold."""
    with pytest.raises(LimitsError) as caught:
        make_limits(**{field: value})
    assert caught.value.field == field


def test_a_context_larger_than_the_pool_is_allowed() -> None:
    assert make_limits(num_pages=1, max_sequence_tokens=2048).pages_for(2048) == 128
