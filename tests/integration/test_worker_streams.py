"""A scripted worker over real gRPC: what is submitted ends exactly once, as its script says, and alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from headrace.v1 import response_pb2, worker_pb2
from headrace_kit.errors import REASONS
from tests.integration.worker_process import TOKEN, Client, Worker, eventually, pack, script, worker

pytestmark = pytest.mark.asyncio(loop_scope="module")
STOP, LENGTH = worker_pb2.FINAL_KIND_STOP, worker_pb2.FINAL_KIND_LENGTH
CANCELLED, FAILED = worker_pb2.FINAL_KIND_CANCELLED, worker_pb2.FINAL_KIND_FAILED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    async with worker(tmp_path_factory.mktemp("worker"), "--num-pages", "512", "--max-context", "8192") as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Worker) -> AsyncIterator[Client]:
    async with Client(running.grpc) as attached:
        yield attached
        await attached.idle()


async def test_a_script_becomes_its_tokens_and_one_final(client: Client) -> None:
    handle = await client.submit(script("a", "bc", 100, [240, 159, 152, 128]))
    final = await client.final(handle)
    assert client.choice(handle).ids == [97, 260, 100, 261, 257]
    assert list(client.accepted[handle].pieces) == [b"bc", "\U0001f600".encode()]
    assert (final.kind, final.num_generated_tokens, final.num_accepted_tokens) == (STOP, 5, 5)


async def test_text_is_echoed_character_by_character(client: Client) -> None:
    handle = await client.submit(pack([256, *"aé".encode()]))
    await client.final(handle)
    assert client.choice(handle).ids == [97, 260, 257]
    assert list(client.accepted[handle].pieces) == ["é".encode()]


async def test_an_engine_error_harms_only_its_own_sequence(client: Client) -> None:
    good = [await client.submit(script("x", "y", "z")) for _ in range(2)]
    bad = await client.submit(script("Hel", "lo", "!err"))
    final = await client.final(bad)
    assert (final.kind, final.reason, final.num_generated_tokens) == (FAILED, "engine_error", 2)
    for handle in good:
        assert (await client.final(handle)).kind == STOP
        assert client.choice(handle).ids == [120, 121, 122, 257]


async def test_the_output_limit_ends_with_length(client: Client) -> None:
    handle = await client.submit(script("a", "b", "c", "d", "e", "f"), max_output_tokens=5)
    final = await client.final(handle)
    assert (final.kind, final.num_generated_tokens) == (LENGTH, 5)


async def test_choices_run_the_same_script_and_end_one_by_one(client: Client) -> None:
    handle = await client.submit(script("h", "i"), n=3)
    finals = [await client.final(handle + choice) for choice in range(3)]
    assert [final.choice for final in finals] == [0, 1, 2]
    assert all(client.choice(handle + choice).ids == [104, 105, 257] for choice in range(3))


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, [97, 257]), (3, [97, 257, 257, 257])])
async def test_no_end_token_ends_before_min_tokens(client: Client, min_tokens: int, expected: list[int]) -> None:
    handle = await client.submit(script("a"), sampling=response_pb2.Sampling(min_tokens=min_tokens))
    await client.final(handle)
    assert client.choice(handle).ids == expected


async def test_ignoring_end_tokens_runs_to_the_limit(client: Client) -> None:
    handle = await client.submit(script("a"), max_output_tokens=4, sampling=response_pb2.Sampling(ignore_eos=True))
    assert (await client.final(handle)).kind == LENGTH
    assert client.choice(handle).ids == [97, 257, 257, 257]


async def test_logprobs_come_one_per_token(client: Client) -> None:
    sampling = response_pb2.Sampling(logprobs=True, top_logprobs=2)
    handle = await client.submit(script("a", "b"), sampling=sampling)
    await client.final(handle)
    entries = client.choice(handle).logprobs
    assert [(entry.token_id, entry.logprob) for entry in entries] == [(97, 0.0), (98, 0.0), (257, 0.0)]


async def test_a_cancel_ends_the_stream_and_repeats_the_accepted_count(client: Client) -> None:
    handle = await client.submit(script("!repeat(5000,x)"), max_output_tokens=6000)
    await eventually(lambda: len(client.choice(handle).ids) >= 3)
    await client.cancel(client.name(handle), accepted_count=3, reason="stop")
    final = await client.final(handle)
    assert (final.kind, final.reason, final.num_accepted_tokens) == (STOP, "stop", 3)
    assert final.num_generated_tokens == len(client.choice(handle).ids) < 5000


async def test_a_cancel_reaches_all_choices(client: Client) -> None:
    sampling = response_pb2.Sampling(ignore_eos=True)
    handle = await client.submit(script("!rate(50)"), n=3, max_output_tokens=2000, sampling=sampling)
    await eventually(lambda: client.choice(handle).ids)
    await client.cancel(client.name(handle), reason="disconnect")
    for choice in range(3):
        final = await client.final(handle + choice)
        assert (final.kind, final.reason) == (CANCELLED, "disconnect")


async def test_a_cancel_needs_the_tenants_digest_from_another_attach(running: Worker, client: Client) -> None:
    handle = await client.submit(script("!rate(20)", "!repeat(1000,x)"), max_output_tokens=1000)
    name = client.name(handle)
    await eventually(lambda: client.choice(handle).ids)
    async with Client(running.grpc, "gateway-2") as other:
        await other.cancel(name, tenant_digest=b"someone else")
        seen = len(client.choice(handle).ids)
        await eventually(lambda: len(client.choice(handle).ids) > seen + 2)
        await other.cancel(name, tenant_digest=b"tenant")
        assert (await client.final(handle)).kind == CANCELLED


async def test_a_stalled_sequence_does_not_hold_up_its_neighbour(client: Client) -> None:
    stalled = await client.submit(script("a", "!stall(30)", "b"))
    await eventually(lambda: client.choice(stalled).ids == [97])
    free = await client.submit(script("x", "y"))
    assert (await client.final(free)).kind == STOP
    assert client.choice(stalled).ids == [97]
    await client.cancel(client.name(stalled))
    await client.final(stalled)


async def test_frames_come_at_least_once_a_second(client: Client) -> None:
    before = len(client.frames)
    await eventually(lambda: len(client.frames) >= before + 2)
    assert [frame.seq for frame in client.frames] == list(range(len(client.frames)))


BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("prompt_ids", {"prompt_ids": b""}),
    ("prompt_ids", {"prompt_ids": b"abc"}),
    ("prompt_ids", {"prompt_ids": pack([260])}),
    ("prompt_ids", {"prompt_ids": pack([2**31])}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("n", {"n": 0}),
    ("n", {"n": 2**32 - 1}),
    ("weight", {"weight": float("nan")}),
    ("response_id", {"response_id": ""}),
    ("attempt", {"attempt": 0}),
    ("grammar", {"grammar": response_pb2.Grammar(kind=response_pb2.Grammar.KIND_REGEX, text="a")}),
]
BAD_SAMPLING: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": float("inf")}),
    ("temperature", {"temperature": -1.0}),
    ("top_p", {"top_p": 1.5}),
    ("top_p", {"top_p": float("nan")}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": float("-inf")}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": float("nan")}),
    ("presence_penalty", {"presence_penalty": 3.0}),
    ("frequency_penalty", {"frequency_penalty": float("nan")}),
    ("min_tokens", {"min_tokens": -1}),
    ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
    ("top_logprobs", {"top_logprobs": -1, "logprobs": True}),
    ("top_logprobs", {"top_logprobs": 5}),
    ("stop_token_ids", {"stop_token_ids": [260]}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("allowed_ids", {"allowed_ids": [2**40]}),
    ("banned_ids", {"banned_ids": [-5]}),
    ("logit_bias", {"logit_bias": {260: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": {5: 101.0}}),
]


async def test_a_bad_field_is_refused_by_name_and_harms_nobody(running: Worker, client: Client) -> None:
    pid = running.engine_pid()
    neighbour = await client.submit(script("!rate(20)", "!repeat(40,x)"))
    cases = [*BAD_FIELDS, *((name, {"sampling": response_pb2.Sampling(**bad)}) for name, bad in BAD_SAMPLING)]
    handles = [(name, await client.submit(script("a"), **fields)) for name, fields in cases]
    for name, handle in handles:
        refused = await client.refusal(handle)
        assert (refused.reason, refused.field) == ("invalid_argument", name), refused
    assert (await client.final(neighbour)).kind == STOP
    assert client.choice(neighbour).ids == [120] * 40 + [257]
    assert running.engine_pid() == pid


async def test_a_huge_output_limit_is_refused(client: Client) -> None:
    for limit in (10**9, 2**31, 2**32 - 1):
        refused = await client.refusal(await client.submit(script("a"), max_output_tokens=limit))
        assert refused.reason == "context_length_exceeded"
        assert str(limit) in refused.detail and "8192" in refused.detail


async def test_what_can_never_fit_is_refused_with_both_numbers(client: Client) -> None:
    refused = await client.refusal(await client.submit(script("a"), max_output_tokens=8000, n=2))
    assert refused.reason == "prompt_exceeds_capacity"
    assert "1002" in refused.detail and "512" in refused.detail


async def test_a_boundary_stop_id_is_fine(client: Client) -> None:
    sampling = response_pb2.Sampling(stop_token_ids=[98], logit_bias={5: -100.0}, top_k=-1, top_p=0.0)
    handle = await client.submit(script("a", "b", "c"), sampling=sampling)
    assert (await client.final(handle)).kind == STOP
    assert client.choice(handle).ids == [97, 98]


async def test_another_epoch_is_refused(client: Client) -> None:
    refused = await client.refusal(await client.submit(script("a"), replica_epoch="old"))
    assert (refused.reason, refused.field) == ("busy", "replica_epoch")


async def test_the_same_attempt_twice_is_refused(client: Client) -> None:
    first = await client.submit(script("!stall(5)"), response_id="twice")
    second = await client.submit(script("a"), response_id="twice")
    refused = await client.refusal(second)
    assert (refused.reason, refused.field) == ("invalid_argument", "response_id")
    await client.cancel("twice")
    assert (await client.final(first)).kind == CANCELLED


async def test_an_acknowledged_prompt_is_reused_from_the_cache(client: Client) -> None:
    prompt = pack([256, *range(40, 72), 97])
    cached = []
    for _ in range(2):
        handle = await client.submit(prompt)
        final = await client.final(handle)
        cached.append(final.num_cached_tokens)
    assert cached == [0, 32]


async def test_a_stream_must_begin_with_hello(client: Client) -> None:
    call = client.stub.Attach()
    await call.write(worker_pb2.Command(ack=worker_pb2.Ack()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_without_the_service_token_nothing_is_served(running: Worker) -> None:
    async with asyncio.timeout(5):
        stranger = Client(running.grpc, token="wrong")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stranger.stub.Describe(worker_pb2.DescribeRequest(), timeout=30)
        await stranger.channel.close()
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_describe_says_what_was_measured(client: Client) -> None:
    description = await client.stub.Describe(worker_pb2.DescribeRequest(), timeout=30)
    assert (description.engine, description.num_pages, description.page_tokens) == ("scripted", 512, 16)
    assert (description.max_context_tokens, description.num_full_reservations) == (8192, 1)
    assert len(description.card_digest) == 32


async def test_watch_lists_the_cache_then_tells_its_changes(client: Client) -> None:
    watch = client.stub.Watch(worker_pb2.WatchRequest(router_id="r", want_blocks=True))
    stored: list[bytes] = []
    cleared = relists = 0
    prompt = pack([256, *range(100, 116)])
    handle = await client.submit(prompt)
    await client.final(handle)
    async with asyncio.timeout(10):
        async for event in watch:
            if event.WhichOneof("event") != "blocks":
                continue
            relists += event.blocks.relist_begin
            stored += [change.stored for change in event.blocks.events if change.stored]
            if stored and not cleared:
                before = client.epoch
                flushed = await client.stub.FlushCache(worker_pb2.FlushCacheRequest(), timeout=30)
                assert flushed.epoch != before
                cleared += 1
                stored.clear()
            elif cleared and relists == 2:
                break
    watch.cancel()
    assert not stored
    await eventually(lambda: client.epoch == flushed.epoch)
    handle = await client.submit(prompt)
    assert (await client.final(handle)).num_cached_tokens == 0


async def test_metrics_count_what_happened_and_need_the_token(running: Worker, client: Client) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    handle = await client.submit(script("a", "b"), traceparent=traceparent)
    await client.final(handle)
    await client.idle()
    url = f"http://{running.http}/metrics"
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.get(url)).status_code == 401
        text = (await http.get(url, headers={"authorization": f"Bearer {TOKEN}"})).text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert values['worker_sequences_total{kind="stop"}'] >= 1
    assert values['worker_tokens_total{kind="generated"}'] >= 3
    assert values['worker_pages{state="held"}'] == values["worker_running"] == 0
    assert values["worker_imbalances_total"] == 0
    for part in ("plan", "forward", "sample", "host_gap"):
        assert values[f'worker_step_seconds_count{{part="{part}"}}'] >= 3
    assert values["worker_batch_rows_count"] >= 3 and values["worker_batch_tokens_sum"] >= 3
    assert values["worker_queue_age_seconds"] == values["worker_queued_tokens"] == values["worker_admitted_tokens"] == 0
    # Whatever happens next can add no more than each reason of the status map and each method with each status.
    assert len(values) + len(REASONS) + 17 * 8 <= 1000
