"""A worker whose engine is a group of ranks: serves, says what it is, and ends as one, whichever process is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from headrace.v1 import response_pb2, worker_pb2
from tests.integration.worker_process import Client, Worker, eventually, pack, worker
from tests.unit.worker.parallel.group_model import prompt, write_model

ENDLESS = response_pb2.Sampling(temperature=0, ignore_eos=True)


def flags(directory: Path, tp: int, pp: int) -> tuple[str, ...]:
    source = write_model(directory / "eight")
    sizes = ("--max-running", "8", "--max-batch-tokens", "64", "--num-pages", "256", "--threads", "1")
    return ("--engine", "torch", "--source", str(source), "--tp", str(tp), "--pp", str(pp), *sizes)


def engine_and_ranks(running: Worker) -> tuple[psutil.Process, list[psutil.Process]]:
    engine = psutil.Process(running.engine_pid())
    return engine, [each for each in engine.children() if "headrace_worker.execution.rank" in each.cmdline()]


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def start_streaming(client: Client) -> list[int]:
    handles = [
        await client.submit(pack(prompt(12, salt)), max_output_tokens=240, sampling=ENDLESS) for salt in range(6)
    ]
    await eventually(lambda: all(client.choice(handle).ids for handle in handles))
    return handles


async def assert_all_lost(client: Client, handles: list[int], since_s: float) -> None:
    """What had not ended ends explicitly, by itself; two seconds are promised, and a busy host gets ten."""
    finals = [await client.final(handle, 10) for handle in handles]
    assert time.monotonic() - since_s < 10
    lost = [final for final in finals if final.kind == worker_pb2.FINAL_KIND_FAILED]
    assert lost and {final.reason for final in lost} == {"worker_lost"}


async def test_a_group_serves_and_a_killed_rank_ends_it_explicitly(tmp_path: Path) -> None:
    async with worker(tmp_path, *flags(tmp_path, 2, 1)) as running, Client(running.grpc) as client:
        engine, (rank,) = engine_and_ranks(running)
        handle = await client.submit(pack(prompt(20)), max_output_tokens=8, sampling=ENDLESS)
        assert (await client.final(handle)).num_generated_tokens == 8
        described = await client.stub.Describe(worker_pb2.DescribeRequest(), timeout=30)
        assert (described.tp, described.pp, described.kv_bytes_per_token) == (2, 1, 1024)
        assert [each.bytes for each in described.all_reduce] == [1 << 12, 1 << 15, 1 << 18, 1 << 20]
        assert all(each.us > 0 for each in described.all_reduce)
        handles = await start_streaming(client)
        killed_s = time.monotonic()
        rank.kill()
        await assert_all_lost(client, handles, killed_s)
        await eventually(lambda: running.process.poll() is not None and is_gone(engine))
        last_line = running.log.read_text().strip().splitlines()[-1]
        assert f"rank 1 of 2 (pid {rank.pid}) has ended: killed by signal 9" in last_line


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
async def test_a_stopped_rank_ends_its_worker_and_is_not_left_behind(tmp_path: Path, number: int) -> None:
    async with worker(tmp_path, *flags(tmp_path, 1, 2)) as running, Client(running.grpc) as client:
        engine, (rank,) = engine_and_ranks(running)
        handles = await start_streaming(client)
        stopped_s = time.monotonic()
        os.kill((engine, rank)[number].pid, signal.SIGSTOP)
        await assert_all_lost(client, handles, stopped_s)
        await eventually(lambda: running.process.poll() is not None and is_gone(engine) and is_gone(rank))
        if number:
            assert "gives no sign of life" in running.log.read_text().strip().splitlines()[-1]


@pytest.mark.parametrize("whom", ["worker", pytest.param("engine", marks=pytest.mark.slow)])
async def test_no_rank_outlives_those_above_it(tmp_path: Path, whom: str) -> None:
    """kill -9 in the middle of work."""
    async with worker(tmp_path, *flags(tmp_path, 2, 1)) as running, Client(running.grpc) as client:
        engine, (rank,) = engine_and_ranks(running)
        await start_streaming(client)
        os.kill(running.pid if whom == "worker" else engine.pid, signal.SIGKILL)
        await eventually(lambda: is_gone(engine) and is_gone(rank))
        await eventually(lambda: running.process.poll() is not None)
