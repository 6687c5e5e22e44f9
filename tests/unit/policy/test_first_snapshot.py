"""Before the first snapshot nobody is known: that is a moment of ours, not a wrong key of the caller's."""

import pytest

from headrace_kit.errors import HeadraceError
from headrace_policy.book import Book
from headrace_policy.identity import authenticate


def test_a_key_is_not_refused_for_good() -> None:
    with pytest.raises(HeadraceError) as refused:
        authenticate(Book(), "hr_abc_def", "m", 0.0)
    assert refused.value.reason == "policy_unavailable" and refused.value.row.retryable
