"""A guard model served by the platform itself, asked through its own gateway as tenant ``_guard``.

The guard here is the scripted model: it says a text again, so a text that begins with "unsafe" is unsafe to it, one
that begins with "safe" is safe, and of any other it gives no verdict.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.integration.platform.http.http_client import Http, script, user
from tests.integration.platform.running_platform import SCRIPTED, Platform, running_platform, wait_until

RULES = """
safety:
  rules:
    watch: {detector: guard, guard_model: scripted, side: output}
    leave: {detector: guard, guard_model: scripted, side: output, fail_open: true}
    enter: {detector: guard, guard_model: scripted, side: input}
"""
WINDOW = 4000
"""Code points of one question: a text so long is asked about alone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    fleet = folder / "fleet.yaml"
    tenants = "dev: {rules: [watch]}\n  open: {rules: [leave]}\n  door: {rules: [enter]}"
    fleet.write_text(SCRIPTED.read_text().replace("dev: {}", tenants) + RULES)
    with running_platform(folder / "platform", fleet) as platform:
        yield platform


@pytest.fixture(scope="module")
def http(platform: Platform) -> Iterator[Http]:
    http = Http(platform)
    with http.client:
        yield http


def key_of(platform: Platform, tenant: str) -> str:
    """A new key; it is in force when its policy has the snapshot."""
    created = platform.headrace("keys", "create", tenant)
    assert created.returncode == 0, created.stderr
    key = next(word for word in created.stdout.split() if word.startswith("hr_"))
    headers = {"authorization": f"Bearer {key}"}
    wait_until(lambda: httpx.get(f"{platform.http}/v1/models", headers=headers).status_code == 200, "the key is known")
    return key


def generate(platform: Platform, text: str, **fields: Any) -> list[Any]:
    with platform.client() as client:
        return list(client.generate("scripted", user(text), **fields))


def shown(events: list[Any]) -> str:
    return "".join(event.delta.text for event in events)


def test_clean_text_is_shown_and_the_unsafe_window_is_not(platform: Platform) -> None:
    unsafe = "unsafe " + "x" * (WINDOW - 7)
    events = generate(platform, script("safe so far.", "!stall(1)", unsafe, " and more"), max_output_tokens=20)
    assert shown(events) == "safe so far."
    end = events[-1].incomplete
    assert end.reason == "content_filter"
    row = wait_until(lambda: usage(platform, events[0].response_id), "the settlement is in the journal")
    assert (row["kind"], row["reason"]) == ("incomplete", "content_filter")
    assert row["output_tokens"] == end.usage.num_output_tokens >= 2
    assert row["withheld_tokens"] == row["output_tokens"] - 1


def test_safe_text_is_shown_whole_and_in_time(platform: Platform) -> None:
    events = generate(platform, script("!rate(20)", "safe", *" and sound as a bell"))
    assert shown(events) == "safe and sound as a bell"
    assert events[-1].WhichOneof("event") == "completed"
    deltas = [event for event in events if event.WhichOneof("event") == "delta"]
    assert len(deltas) > 1, "a second of text is more than one window"


def test_without_a_verdict_a_closed_rule_fails_the_response(platform: Platform) -> None:
    events = generate(platform, script("who knows"))
    assert shown(events) == ""
    assert (events[-1].WhichOneof("event"), events[-1].failed.reason) == ("failed", "policy_lost")


def test_without_a_verdict_an_open_rule_lets_text_pass(platform: Platform, http: Http) -> None:
    headers = {"authorization": f"Bearer {key_of(platform, 'open')}"}
    body = {"model": "scripted", "messages": user(script("who knows"))}
    answer = http.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "who knows"


def test_a_prompt_is_judged_at_the_door(platform: Platform, http: Http) -> None:
    headers = {"authorization": f"Bearer {key_of(platform, 'door')}"}

    def ask(text: str) -> int:
        body = {"model": "scripted", "messages": user(text)}
        return http.client.post("/v1/chat/completions", json=body, headers=headers).status_code

    assert (ask("safe to say"), ask("unsafe to say"), ask("who knows")) == (200, 400, 503)


def test_nobody_else_is_the_guard(platform: Platform) -> None:
    events = usage_rows(platform, "_guard")
    assert events and {row["tenant"] for row in events} == {"_guard"}
    with grpc.insecure_channel(platform.grpc, (("grpc.enable_http_proxy", 0),)) as channel:
        call: Any = channel.unary_unary("/headrace.v1.Inference/ListModels", bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", metadata=(("authorization", "Bearer hr_guard_0000"),), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def usage_rows(platform: Platform, tenant: str) -> list[dict[str, Any]]:

    printed = platform.headrace("usage", "--tenant", tenant, "--format", "json")
    assert printed.returncode == 0, printed.stderr
    rows: list[dict[str, Any]] = json.loads(printed.stdout)
    return rows


def usage(platform: Platform, response_id: str) -> dict[str, Any] | None:
    return next((row for row in usage_rows(platform, "dev") if row["response_id"] == response_id), None)
