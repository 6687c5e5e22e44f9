"""Prefill and decode replicas of different tensor degrees: processes of ranks over gloo, and the call between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, response_pb2, worker_pb2
from tests.unit.worker.parallel.group_model import prompt, write_model

from .worker_process import Client, pack, worker

GREEDY = response_pb2.Sampling(temperature=0, ignore_eos=True)
LENGTHS = (33, 40, 64, 65, 100)
NUM_OUT = 8


@pytest.mark.slow
@pytest.mark.parametrize(("there", "here", "transport"), [(2, 1, "grpc"), (1, 2, "shared_memory")])
async def test_degrees_may_differ(tmp_path: Path, there: int, here: int, transport: str) -> None:
    sizes = ("--max-running", "8", "--max-batch-tokens", "64", "--num-pages", "256", "--threads", "1")
    model = ("--engine", "torch", "--source", str(write_model(tmp_path / "eight")), "--deterministic", "true", *sizes)
    decode_flags = ("--role", "decode", "--kv-transport", transport, "--tp", str(here))
    async with (
        worker(tmp_path / "p", *model, "--role", "prefill", "--tp", str(there)) as prefill,
        worker(tmp_path / "d", *model, *decode_flags) as decode,
        Client(prefill.grpc, "look") as look,
        Client(decode.grpc) as client,
    ):
        ref = response_pb2.ReplicaRef(id="p", epoch=look.epoch, endpoint=prefill.grpc)

        async def ids_of(length: int, root: bytes, source: response_pb2.ReplicaRef | None) -> list[int]:
            ids = pack(prompt(length, length))
            handle = await client.submit(
                ids, max_output_tokens=NUM_OUT, sampling=GREEDY, chain_root=root, prefill=source
            )
            final = await client.final(handle)
            assert final.kind == worker_pb2.FINAL_KIND_LENGTH, final
            assert final.HasField("prefill") == (source is not None)
            await client.ack(client.name(handle))
            return client.choice(handle).ids

        for length in LENGTHS:
            assert await ids_of(length, b"split", ref) == await ids_of(length, b"whole", None), length
        books = await fleet_pb2_grpc.BookkeepingStub(client.channel).GetBooks(fleet_pb2.GetBooksRequest(), timeout=5)
        rows = {row.equation: row.left for row in books.rows}
        assert rows["hand-offs to here = received + failed + under way"] == len(LENGTHS)
        assert all(row.balanced for row in books.rows), books.rows
