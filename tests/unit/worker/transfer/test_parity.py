"""Real engines: a prompt that was prefilled elsewhere gives the same ids and logprobs, whatever the layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.transfer.shape import CorruptGroup
from headrace_worker.transfer.transport import Carried
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.parallel.group_model import group, prompt, write_model

from .engine_pair import EnginePair

LENGTHS = [1, 17, 18, *range(30, 35), 47, 48, 49, 64, 65, 80, 97, 113, 130]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("split") / "eight")


@pytest.fixture(scope="module")
def prefill(source: Path) -> Iterator[TorchRunner]:
    before = torch.get_num_threads()
    yield load(source, source.parent, role="prefill", max_chunk_tokens=32, deterministic=True)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def decode(source: Path) -> TorchRunner:
    return load(source, source.parent, role="decode", deterministic=True)


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_ids_and_logprobs_are_those_of_one_replica(prefill: TorchRunner, decode: TorchRunner, transport: str) -> None:
    """B119 and B124."""
    whole, pair = EngineBench(decode), EnginePair(prefill, decode, transport)
    for salt, length in enumerate(LENGTHS):
        expected = whole.submit(prompt(length, salt), 6, logprobs=True, num_logprobs=3)
        handle = pair.submit(prompt(length, salt), 6, logprobs=True, num_logprobs=3)
        whole.run()
        pair.run()
        assert pair.target.ids(handle) == whole.ids(expected), length
        assert pair.target.logprobs(handle) == whole.logprobs(expected), length


def test_groups_leave_as_layers_finish(prefill: TorchRunner, decode: TorchRunner) -> None:
    pair = EnginePair(prefill, decode, "grpc")
    pair.submit(prompt(100), 2)
    pair.run()
    # Four chunks of 32 tokens in four layers each.
    assert pair.num_groups == 16


def test_a_flipped_byte_never_becomes_an_answer(prefill: TorchRunner, decode: TorchRunner) -> None:
    def flip(carried: Carried) -> Carried:
        payload = bytearray(b"".join(carried.payload))
        payload[100] ^= 64
        return carried._replace(payload=[bytes(payload)])

    pair = EnginePair(prefill, decode, "grpc", flip)
    handle = pair.submit(prompt(60), 6)
    with pytest.raises(CorruptGroup):
        pair.run()
    pair.target.engine.receive_failed(handle, "prefill_lost")
    pair.target.engine.end_transfer(handle)
    pair.target.step()
    assert pair.target.ids(handle) == []
    assert pair.target.finished(handle).reason == "prefill_lost"


@pytest.mark.parametrize(("there", "here"), [((2, 1), (1, 1)), ((1, 1), (2, 1)), ((1, 2), (1, 1))])
def test_different_degrees_reshard(source: Path, there: tuple[int, int], here: tuple[int, int]) -> None:
    with group(source, *there, role="prefill") as near, group(source, *here, role="decode") as far:
        whole, pair = EngineBench(far), EnginePair(near, far, "shared_memory")
        for salt, length in enumerate([40, 64, 65, 100]):
            expected = whole.submit(prompt(length, salt), 8)
            handle = pair.submit(prompt(length, salt), 8)
            whole.run()
            pair.run()
            assert pair.target.ids(handle) == whole.ids(expected)


def test_the_roles_image_is_the_pool_itself(decode: TorchRunner, tmp_path: Path) -> None:
    assert len(decode.describe().images) == 1
    ordinary = load(write_model(tmp_path / "eight"), tmp_path)
    assert ordinary.describe().images == ()
