"""A worker with real weights over real gRPC: ready only after its warm-up, right, and gone with its parent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tokenizers import Tokenizer

from headrace.v1 import response_pb2, worker_pb2
from headrace.v1.response_pb2 import Grammar
from headrace_worker.models.checkpoint import open_checkpoint
from tests.integration.worker_process import TOKEN, Client, Worker, eventually, pack, start, worker
from tests.unit.worker.models.smollm2 import fetch_smollm2
from tests.unit.worker.models.tiny import write_tiny

ROOT = Path(__file__).parents[1]
ANSWER: dict[str, Any] = json.loads((ROOT / "unit/worker/models/goldens/smollm2.json").read_text())["answers"][0]


def engine_flags(source: Path) -> tuple[str, ...]:
    sizes = ("--max-running", "8", "--max-batch-tokens", "64", "--num-pages", "256", "--threads", "1")
    return ("--engine", "torch", "--source", str(source), *sizes)


async def test_the_default_model_streams_the_known_answer(tmp_path: Path) -> None:
    flags = (*engine_flags(fetch_smollm2()), "--card", "h200-141gib")
    async with worker(tmp_path, *flags) as running, Client(running.grpc) as client:
        sampling = response_pb2.Sampling(temperature=0, logprobs=True, top_logprobs=2)
        handle = await client.submit(pack(ANSWER["prompt_ids"]), max_output_tokens=12, sampling=sampling)
        final = await client.final(handle, 30)
        assert client.choice(handle).ids == ANSWER["output_ids"][: final.num_generated_tokens]
        assert len(client.choice(handle).logprobs) == final.num_generated_tokens
        assert final.device_us > 0 and final.prefill_ms > 0
        description = await client.stub.Describe(worker_pb2.DescribeRequest(), timeout=30)
        assert (description.kv_bytes_per_token, description.max_context_tokens) == (46_080, 8192)
        assert description.weight_bytes > 500_000_000 and description.workspace_bytes > 0
        assert set(description.startup_s) == {"load", "warm_up"}
        assert description.features.grammar
        await assert_grammars_are_kept(client)
        assert await client.idle()
        await assert_resources_are_live(running)


async def assert_resources_are_live(running: Worker) -> None:
    """Shares of the named card: above nothing, and far below it on a CPU."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        headers = {"authorization": f"Bearer {TOKEN}"}
        page = (await http.get(f"http://{running.http}/metrics", headers=headers)).text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    shares = {
        name: values[f'worker_resource_ratio{{resource="{name}"}}'] for name in ("hbm_bandwidth", "tensor_compute")
    }
    assert all(0 < share < 1 for share in shares.values()), shares
    assert values['worker_resource_ratio{resource="links"}'] == 0
    assert 0 <= values['worker_resource_ratio{resource="hbm_capacity"}'] <= 1
    parts = {part: values[f'worker_step_seconds_sum{{part="{part}"}}'] for part in ("plan", "forward", "sample")}
    assert all(seconds > 0 for seconds in parts.values()) and max(parts, key=parts.__getitem__) == "forward"


async def assert_grammars_are_kept(client: Client) -> None:
    """Greedy and sampled, several choices, every kind; a bad one is refused alone while the others run."""
    greedy, free = response_pb2.Sampling(temperature=0), response_pb2.Sampling(temperature=1, seed=7)
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "old": {"type": "boolean"},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["city", "old", "age"],
    }
    cases: list[tuple[Grammar.Kind, str, response_pb2.Sampling]] = [
        (Grammar.KIND_JSON_SCHEMA, json.dumps(schema), greedy),
        (Grammar.KIND_JSON_SCHEMA, json.dumps(schema), free),
        (Grammar.KIND_CHOICE, '["yes", "no", "maybe"]', free),
        (Grammar.KIND_REGEX, r"[0-9]{3}-[a-f]{2}", free),
        (Grammar.KIND_GRAMMAR, 'root ::= "<" [a-z]{4} ">"', greedy),
    ]
    handles = [
        await client.submit(
            pack(ANSWER["prompt_ids"]),
            max_output_tokens=200,
            n=2,
            sampling=sampling,
            grammar=Grammar(kind=kind, text=text),
        )
        for kind, text, sampling in cases
    ]
    bad = await client.submit(
        pack(ANSWER["prompt_ids"]), grammar=Grammar(kind=Grammar.KIND_JSON_SCHEMA, text='{"type": "wibble"}')
    )
    refused = await client.refusal(bad, 60)
    assert (refused.reason, refused.field, refused.detail) == (
        "invalid_grammar",
        "grammar",
        'Unsupported type "wibble"',
    )
    tokenizer = Tokenizer.from_str(open_checkpoint(str(fetch_smollm2()), ROOT).text.tokenizer_json)
    texts = []
    for handle in handles:
        for choice in (handle, handle + 1):
            assert (await client.final(choice, 60)).reason == "stop"
            texts.append(tokenizer.decode(client.choice(choice).ids))
    for text in texts[:4]:
        value = json.loads(text)
        assert set(value) == {"city", "old", "age"} and value["city"] in ("Paris", "Rome") and 1 <= value["age"] <= 99
    assert texts[0] == texts[1]
    assert set(texts[4:6]) <= {"yes", "no", "maybe"}
    assert all(re.fullmatch("[0-9]{3}-[a-f]{2}", text) for text in texts[6:8])
    assert all(re.fullmatch("<[a-z]{4}>", text) for text in texts[8:])


@pytest.mark.parametrize("phase", ["loading", pytest.param("warming", marks=pytest.mark.slow)])
async def test_no_engine_outlives_its_parent_at_any_phase(tmp_path: Path, phase: str) -> None:
    """B112: kill -9 of the parent while it loads and while it warms up."""
    long_warm_up = ("--max-batch-tokens", "1024") if phase == "warming" else ()
    process = start(tmp_path, *engine_flags(fetch_smollm2()), *long_warm_up)
    try:
        announce = tmp_path / "announce.json"
        await eventually(announce.exists, 30)
        facts = json.loads(announce.read_text())
        running = Worker(process, facts["grpc"], facts["http"], tmp_path / "log")
        engine = psutil.Process(running.engine_pid())
        await eventually(lambda: phase in running.progress(), 60)
        assert running.readyz() == 503
        process.kill()
        process.wait()
        await eventually(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    finally:
        process.kill()
        process.wait()


async def test_sigterm_while_it_loads_ends_it(tmp_path: Path) -> None:
    """B112."""
    process = start(tmp_path, *engine_flags(fetch_smollm2()))
    try:
        await eventually((tmp_path / "announce.json").exists, 30)
        process.terminate()
        await eventually(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


async def test_a_missing_shard_refuses_to_start_and_names_the_file(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "model", "llama")
    (source / "model.safetensors").unlink()
    process = start(tmp_path, *engine_flags(source))
    try:
        await eventually(lambda: process.poll() is not None, 30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "model.safetensors" in (tmp_path / "log").read_text()
