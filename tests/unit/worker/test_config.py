"""The worker's flags, as a list that changes only on purpose, and the values that it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from headrace_kit import settings
from headrace_worker.config import ConfigError, WorkerConfig

FLAGS = """
service_token_file state_dir
engine model source revision device card precision quantization kv_precision attention
tp pp collective_timeout_s page_tokens num_pages kv_bytes max_context default_output
max_waiting max_running max_batch_tokens max_chunk_tokens graphs overlap statistical_overrun
deterministic threads record
pool role kv_transport kv_lease_s replica_id domains controlplane advertise
grpc_listen http_listen announce drain_s log_level otlp_endpoint tls_ca tls_cert tls_key
"""


def make(**fields: Any) -> WorkerConfig:
    defaults: dict[str, Any] = {"service_token_file": Path("t"), "state_dir": Path("s"), "engine": "scripted"}
    return WorkerConfig(**(defaults | fields))


def test_the_flags_are_these() -> None:
    """A new one comes with an owner and a reason why no default would do."""
    assert [field.name for field in dataclasses.fields(WorkerConfig)] == FLAGS.split()


def test_every_flag_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.load(WorkerConfig, service="worker", argv=["--help"])
    text = capsys.readouterr().out
    for field in dataclasses.fields(WorkerConfig):
        assert f"--{field.name.replace('_', '-')}" in text
        assert field.metadata["help"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_context", 0),
        ("max_context", -1),
        ("max_chunk_tokens", 0),
        ("page_tokens", 0),
        ("page_tokens", 24),
        ("num_pages", 0),
        ("kv_bytes", -5),
        ("max_batch_tokens", 100),
        ("threads", 0),
        ("statistical_overrun", -0.1),
        ("statistical_overrun", 0.6),
        ("statistical_overrun", float("nan")),
        ("drain_s", -1.0),
        ("drain_s", float("nan")),
    ],
)
def test_a_bad_size_is_refused_by_name(field: str, value: float) -> None:
    """B49."""
    with pytest.raises(ConfigError) as raised:
        make(**{field: value})
    assert raised.value.field == field


def test_a_context_larger_than_the_pool_is_fine() -> None:
    assert make(num_pages=4, max_context=8192).num_pages == 4


def test_what_contradicts_itself_is_refused() -> None:
    for fields in ({"num_pages": 1, "kv_bytes": 1}, {"engine": "torch"}, {"tls_ca": Path("ca")}):
        with pytest.raises(ConfigError):
            make(**fields)
