"""What attention scores and reads, counted query by query."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.attention import Prefill


@given(st.integers(1, 60), st.integers(0, 60), st.none() | st.integers(1, 80))
def test_pairs_and_keys_are_those_counted_one_by_one(num_tokens: int, num_cached: int, window: int | None) -> None:
    prefill = Prefill(num_tokens, num_cached, window)
    seen = [
        {key for key in range(position + 1) if window is None or key > position - window}
        for position in range(num_cached, num_cached + num_tokens)
    ]
    assert prefill.num_pairs == sum(len(keys) for keys in seen)
    assert prefill.longest == len(seen[-1])
    # At most one key more than needed: the first query's window reaches one token less far back.
    assert 0 <= prefill.num_keys - len(set().union(*seen)) <= 1
