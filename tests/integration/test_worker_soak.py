"""Hundreds of requests from gateways that come, cancel and go: one outcome for each, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import httpx

from tests.integration.worker_process import TOKEN, Client, Worker, eventually, script, worker

PARTS = ["a", "xyz", 257, "!err", "!stall(0.05)", "!rate(200)", "!repeat(30,z)", [240, 159, 152, 128]]
NUM_GATEWAYS = 4
NUM_REQUESTS = 60


def has_ended(client: Client, handle: int, ends: list[int]) -> bool:
    return handle in client.refused or all(client.choice(index).finals for index in ends)


async def gateway(running: Worker, number: int, seed: int) -> None:
    """One gateway's life: it submits, cancels some, settles all; the second half of them vanishes in the middle."""
    draw = random.Random(seed)
    async with Client(running.grpc, f"gateway-{number}") as client:
        handles: dict[int, int] = {}
        for _ in range(NUM_REQUESTS):
            n = draw.choice([1, 1, 2, 3])
            handle = await client.submit(
                script(*draw.choices(PARTS, k=draw.randint(0, 6))),
                n=n,
                max_output_tokens=draw.randint(1, 60),
                queue_deadline_ms=draw.choice([0, 0, 50]),
                fair_key=f"key-{draw.randint(0, 3)}",
            )
            handles[handle] = n
            if draw.random() < 0.3:
                victim = draw.choice(list(handles))
                await client.cancel(client.name(victim), choice=draw.choice([-1, 0]))
            await asyncio.sleep(0)
        if number >= NUM_GATEWAYS // 2:
            return
        for handle, n in handles.items():
            ends = [handle + choice for choice in range(n)]
            await eventually(partial(has_ended, client, handle, ends), 60)
            num_finals = [len(client.choice(index).finals) for index in ends]
            assert num_finals == ([0] * n if handle in client.refused else [1] * n)
            for index in ends:
                for final in client.choice(index).finals:
                    assert final.num_generated_tokens == len(client.choice(index).ids) + final.num_late_tokens
        await client.ack(*(client.name(handle) for handle in handles))


async def test_a_soak_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ("--num-pages", "48", "--max-waiting", "24", "--max-running", "12", "--max-context", "512")
    async with worker(tmp_path, *flags) as running:
        await asyncio.gather(*(gateway(running, number, number + 1) for number in range(NUM_GATEWAYS)))
        async with Client(running.grpc, "heir") as heir:
            load = await heir.idle()
            assert load.num_cached_pages <= load.num_total_pages == 48
            await eventually(lambda: heir.orphans, 30)
            assert len({(each.final.response_id, each.final.choice) for each in heir.orphans}) == len(heir.orphans)
            await heir.ack(*{each.final.response_id for each in heir.orphans})
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            headers = {"authorization": f"Bearer {TOKEN}"}
            text = (await http.get(f"http://{running.http}/metrics", headers=headers)).text
        assert "worker_imbalances_total 0.0" in text
        errors = [line for line in running.log.read_text().splitlines() if '"level": "error"' in line]
        assert [line for line in errors if "sequence_failed" not in line] == []
