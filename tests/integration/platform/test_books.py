"""The books as an operator reads them: one row per response, whatever became of it, and nothing left reserved."""

import csv
import io
import json
import time
from typing import Any

import httpx

from headrace_kit.errors import HeadraceError
from tests.integration.platform.running_platform import Platform, wait_until


def rows(platform: Platform) -> dict[str, dict[str, Any]]:
    """Rows by response id."""
    return {row["response_id"]: row for row in json.loads(platform.headrace("usage", "--format", "json").stdout)}


def script(*steps: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": json.dumps(list(steps))}]


def test_every_response_has_one_row(platform: Platform) -> None:
    seen = {}
    with platform.client() as client:
        for steps, limit in ((("a", "b"), None), (("a", "b", "c"), 2), (("a", "!err"), None)):
            stream = client.generate("scripted", script(*steps), max_output_tokens=limit)
            list(stream)
            seen[stream.response_id] = stream
        gone = client.generate("scripted", script("a", "!stall(30)"))
        for event in gone:
            if event.WhichOneof("event") == "delta":
                break
        gone.__exit__()
    wait_until(lambda: {*seen, gone.response_id} <= rows(platform).keys(), "all rows are there")
    found = rows(platform)
    for response_id, stream in seen.items():
        row = found[response_id]
        assert row["kind"] == stream.kind and stream.usage is not None
        assert row["prompt_tokens"] == stream.usage.num_prompt_tokens
        assert row["output_tokens"] == stream.usage.num_output_tokens
    assert (found[gone.response_id]["kind"], found[gone.response_id]["reason"]) == ("cancelled", "disconnect")  # B64


def test_usage_is_also_csv(platform: Platform) -> None:
    with platform.client() as client:
        list(client.generate("scripted", script("a")))
    text = platform.headrace("usage", "--tenant", "dev").stdout
    listed = list(csv.DictReader(io.StringIO(text)))
    assert listed and {row["tenant"] for row in listed} == {"dev"}
    assert platform.headrace("usage", "--from", "2020-01-01", "--to", "2020-01-02").stdout.count("\n") == 1
    assert "ISO 8601" in platform.headrace("usage", "--from", "yesterday").stderr


def test_a_quota_is_set_shown_kept_and_returned(platform: Platform) -> None:
    assert platform.headrace("quota", "set", "dev", "concurrency", "1").returncode == 0

    def outcome() -> str:
        with platform.client() as client:
            try:
                return str(list(client.generate("scripted", script("a")))[-1].WhichOneof("event"))
            except HeadraceError as error:
                return error.reason

    with platform.client() as client:
        running = client.generate("scripted", script("a", "!stall(30)"))
        assert next(iter(running)).WhichOneof("event") == "created"
        wait_until(lambda: outcome() == "concurrency", "the limit is in force")
        assert "concurrency" in platform.headrace("quota", "show", "dev").stdout
        running.__exit__()
    wait_until(lambda: outcome() == "completed", "the place is free again")
    assert platform.headrace("quota", "set", "dev", "concurrency", "none").returncode == 0
    refused = platform.headrace("quota", "set", "dev", "nonsense", "1")
    assert refused.returncode == 1 and "tenants.dev.limits" in refused.stderr


def test_device_time_is_split_by_what_came_of_it_and_adds_up(platform: Platform) -> None:
    with platform.client() as client:
        done = client.generate("scripted", script("a", "b"))
        list(done)
        failed = client.generate("scripted", script("a", "!err"))
        list(failed)
        gone = client.generate("scripted", script("a", "!stall(30)"))
        for event in gone:
            if event.WhichOneof("event") == "delta":
                break
        gone.__exit__()
    ids = {done.response_id, failed.response_id, gone.response_id}
    wait_until(lambda: ids <= rows(platform).keys(), "all are settled")
    report = json.loads(platform.headrace("cost", "--format", "json").stdout)
    assert sum(row["device_us"] for row in report["rows"]) == report["bill"]["device_us"] > 0
    assert {"useful", "failed", "cancelled", "idle"} <= {row["part"] for row in report["rows"]}
    assert "device hours" in platform.headrace("cost", "--by", "tenant").stdout
    own = json.loads(platform.headrace("cost", "--tenant", "dev", "--format", "json").stdout)["rows"]
    assert own and {row["tenant"] for row in own} == {"dev"}


def test_what_a_refused_caller_is_told_is_exact(platform: Platform) -> None:
    """The headers count down, and who waits as told is admitted."""
    capacity = 60  # a minute, so one a second comes back
    headers = {"authorization": f"Bearer {platform.api_key}"}
    body = {"model": "scripted", "messages": script("a"), "max_tokens": 1}
    assert platform.headrace("quota", "set", "dev", "rpm", str(capacity)).returncode == 0
    try:
        with httpx.Client(base_url=platform.http, headers=headers, trust_env=False, timeout=60) as http:

            def ask() -> httpx.Response:
                return http.post("/v1/chat/completions", json=body)

            wait_until(lambda: "x-ratelimit-limit-requests" in ask().headers, "the limit is in force")
            first = ask().headers
            assert first["x-ratelimit-limit-requests"] == str(capacity)
            left = int(first["x-ratelimit-remaining-requests"])
            while (answer := ask()).status_code == 200:
                assert int(answer.headers["x-ratelimit-remaining-requests"]) <= left
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rpm")
            assert 1 <= int(answer.headers["retry-after"]) <= 2
            time.sleep(int(answer.headers["retry-after"]))
            assert ask().status_code == 200
    finally:
        assert platform.headrace("quota", "set", "dev", "rpm", "none").returncode == 0
