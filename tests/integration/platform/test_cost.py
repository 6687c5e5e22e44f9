"""The bill of a mixed run: every ending there is, two tenants, a priced pool. Each microsecond is in it, once.

What the parts must be is computed here from the settlements that policy keeps, attempt by attempt.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.v1 import policy_pb2, response_pb2
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from tests.integration.platform.running_platform import Platform, running_platform, wait_until

PRICE_PER_HOUR = 3600.0  # so that a second of a device costs 1
FLEET = f"""
models: {{scripted: {{source: scripted}}}}
pools: {{scripted: {{model: scripted, engine: scripted, min: 1, max: 1, price_per_gpu_hour: {PRICE_PER_HOUR:g}}}}}
classes: {{standard: {{ttft_ms: 30000, max_queue_ms: 60000, delivery_reserve_ms: 20, default: true}}}}
tenants: {{dev: {{rules: [fruit, mail, weapon]}}, acme: {{}}}}
safety:
  rules:
    fruit: {{detector: blocklist, values: [persimmon], side: output}}
    mail: {{detector: pii, values: [email], side: output, action: redact}}
    weapon: {{detector: blocklist, values: [trebuchet], side: input}}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder: Path = tmp_path_factory.mktemp("cost")
    (folder / "fleet.yaml").write_text(FLEET)
    with running_platform(folder / "platform", folder / "fleet.yaml") as platform:
        yield platform


def say(platform: Platform, key: str, *steps: object, **more: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": json.dumps(steps)}], **more}
    with httpx.Client(trust_env=False, timeout=60) as client:
        url, headers = f"{platform.http}/v1/chat/completions", {"authorization": f"Bearer {key}"}
        return client.post(url, json=body, headers=headers)


def finish_reason(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["finish_reason"])


def run_every_ending(platform: Platform, acme: str) -> int:
    """Returns how many of them were settled."""
    dev = platform.api_key
    assert finish_reason(say(platform, dev, "!rate(50)", *"abcdef")) == "stop"
    assert finish_reason(say(platform, acme, "!rate(50)", *"abcdef")) == "stop"
    assert finish_reason(say(platform, acme, "!rate(50)", "!repeat(20,z)", max_tokens=6)) == "length"
    assert say(platform, dev, "!rate(50)", *"abc", "!err").status_code == 500
    blocked = say(platform, dev, "!rate(50)", "a ", "per", "sim", "mon", " pie", "!repeat(40,z)")
    assert finish_reason(blocked) == "content_filter"
    assert finish_reason(say(platform, dev, "!rate(50)", "to ", "joe@", "example", ".com", " now")) == "stop"
    refused = say(platform, dev, "trebuchet")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "blocked_input")
    with platform.client() as client:
        gone = client.generate("scripted", [{"role": "user", "content": '["!rate(50)", "!repeat(500,y)"]'}])
        for num_seen, _ in enumerate(gone):
            if num_seen == 8:
                break
        gone.__exit__()
    return 7


async def settlements(platform: Platform, *, also_beside: bool = False) -> list[policy_pb2.SettleRequest]:
    async with Admin(StateDir(platform.state_dir)) as admin:
        rows = admin.stream(admin.stub.QueryUsage, policy_pb2.UsageQuery(), 30.0)
        return [row.settlement async for row in rows if row.settlement.created or also_beside]


def parts_of(settled: policy_pb2.SettleRequest) -> dict[str, int]:
    """Device time by the vocabulary: useful is what was delivered of an answer that ended well or at its own limit."""
    device_us = sum(one.device_us for one in settled.attempts)
    if settled.reason == "content_filter":
        return {"withheld": device_us}
    if settled.kind in (response_pb2.TERMINAL_KIND_COMPLETED, response_pb2.TERMINAL_KIND_INCOMPLETE):
        num_generated = sum(one.num_generated_tokens for one in settled.attempts)
        withheld_us = device_us * settled.num_withheld_tokens // num_generated
        return {"useful": device_us - withheld_us, "withheld": withheld_us}
    return {"cancelled" if settled.kind == response_pb2.TERMINAL_KIND_CANCELLED else "failed": device_us}


def test_a_mixed_run_sums_to_the_bill_to_the_microsecond(platform: Platform) -> None:
    acme = platform.headrace("keys", "create", "acme").stdout.strip()

    def key_is_known() -> bool:
        return say(platform, acme, "x").status_code == 200

    wait_until(key_is_known, "the key is known")
    wait_until(lambda: len(asyncio.run(settlements(platform))) == 1, "it is settled")
    num_settled = 1 + run_every_ending(platform, acme)
    found = wait_until(
        lambda: settled if len(settled := asyncio.run(settlements(platform))) == num_settled else None,
        "all are settled",
    )
    report = json.loads(platform.headrace("cost", "--format", "json").stdout)
    rows, bill = report["rows"], report["bill"]

    assert sum(row["device_us"] for row in rows) == bill["device_us"] > 0
    assert bill["cost"] == pytest.approx(bill["device_us"] / 1e6 * PRICE_PER_HOUR / 3600, rel=1e-9)
    assert sum(row["cost"] for row in rows) == pytest.approx(bill["cost"], rel=1e-9)

    booked, expected = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in rows:
        booked[row["part"], row["tenant"]] += row["device_us"]
    for settled in found:
        for part, device_us in parts_of(settled).items():
            expected[part, settled.reservation.identity.tenant] += device_us
    idle_us = booked.pop(("idle", ""))
    assert booked == expected and idle_us == bill["device_us"] - expected.total() > 0
    assert {part for part, tenant in booked if tenant == "dev"} == {"useful", "failed", "cancelled", "withheld"}
    assert all(device_us > 0 for place, device_us in booked.items() if place != ("withheld", "acme"))

    later = json.loads(platform.headrace("cost", "--by", "tenant", "--format", "json").stdout)
    assert sum(row["device_us"] for row in later["rows"]) == later["bill"]["device_us"]
    assert "of the bill" in platform.headrace("cost", "--tenant", "acme").stdout


def test_device_time_that_was_told_of_after_the_settlement_is_no_idle_time(platform: Platform) -> None:
    """The engine stands still while its client leaves: the gateway settles, and hears of the time when it goes on."""
    (engine,) = platform.engine_pids()
    with platform.client() as client:
        gone = client.generate("scripted", [{"role": "user", "content": '["!rate(50)", "!repeat(500,y)"]'}])
        for num_seen, _ in enumerate(gone):
            if num_seen == 5:
                break
        os.kill(engine, signal.SIGSTOP)
        try:
            gone.__exit__()
            wait_until(lambda: settled_as(platform, gone.response_id), "it is settled without its final")
        finally:
            os.kill(engine, signal.SIGCONT)
    late = wait_until(lambda: settled_as(platform, f"{gone.response_id}.1.1"), "the rest is settled")
    whole = settled_as(platform, gone.response_id)
    assert whole is not None and (late.attempt_of, late.attempts[0].device_us > 0) == (gone.response_id, True)
    assert whole.attempts[0].device_us == 0 and late.attempts[0].num_generated_tokens == 0
    report = json.loads(platform.headrace("cost", "--tenant", "dev", "--format", "json").stdout)
    cancelled = sum(row["device_us"] for row in report["rows"] if row["part"] == "cancelled")
    kinds = [parts_of(one) for one in asyncio.run(settlements(platform))]
    assert cancelled == sum(one.get("cancelled", 0) for one in kinds) + late.attempts[0].device_us
    assert gone.response_id + "." not in platform.headrace("usage").stdout, "one row for each response"
    wait_until(lambda: platform.headrace("audit").returncode == 0, "the books balance")


def settled_as(platform: Platform, response_id: str) -> policy_pb2.SettleRequest | None:
    found = {one.reservation.response_id: one for one in asyncio.run(settlements(platform, also_beside=True))}
    return found.get(response_id)
