"""Leaves the process-wide state of logging and tracing as it found it."""

from collections.abc import Iterator

import pytest

from headrace_kit import logs


@pytest.fixture(autouse=True)
def _process_log_fields() -> Iterator[None]:
    before = dict(logs._process)
    yield
    logs._process.clear()
    logs._process.update(before)
