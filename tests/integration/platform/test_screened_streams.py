"""The fleet's `safety`: forbidden text reaches no client, and browsers call from named origins only."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, script, user
from tests.integration.platform.running_platform import SCRIPTED, Platform, running_platform, wait_until

WORD = "persimmon"
RULES = """
safety:
  cors_origins: ["https://ours.example"]
  rules:
    fruit: {detector: blocklist, values: [persimmon], side: output}
    mail: {detector: pii, values: [email], side: output, action: redact}
"""
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("screened")
    fleet: Path = folder / "fleet.yaml"
    fleet.write_text(SCRIPTED.read_text().replace("dev: {}", "dev: {rules: [fruit, mail]}") + RULES)
    with running_platform(folder / "platform", fleet) as platform:
        yield platform


@pytest.fixture(scope="module")
def http(platform: Platform) -> Iterator[Http]:
    http = Http(platform)
    with http.client:
        yield http


def ask(path: str, text: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": user(text)},
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": text},
        "/v1/messages": {"messages": user(text), "max_tokens": 500},
    }
    return {"model": "scripted", **prompt[path], **fields}


def text_of(path: str, events: list[Any]) -> str:
    """All text that a client was sent."""
    told = []
    for _, data in events:
        if path.endswith("completions") and data != "[DONE]":
            told += [one.get("text") or one.get("delta", {}).get("content") or "" for one in data["choices"]]
        elif path.endswith("responses") and data["type"] == "response.output_text.delta":
            told.append(data["delta"])
        elif path.endswith("messages") and data["type"] == "content_block_delta":
            told.append(data["delta"]["text"])
    return "".join(told)


def ending_of(path: str, events: list[Any]) -> set[str]:
    """How the stream says it ended."""
    if path.endswith("completions"):
        assert events[-1].data == "[DONE]"
        finished = [one["finish_reason"] for event in events[:-1] for one in event.data["choices"]]
        return {reason for reason in finished if reason}
    if path.endswith("responses"):
        assert events[-1].event == "response.incomplete"
        return {events[-1].data["response"]["incomplete_details"]["reason"]}
    assert events[-1].event == "message_stop"
    return {events[-2].data["delta"]["stop_reason"]}


def judged(platform: Platform) -> Counter[str]:
    """Settled responses by what screening said of them."""
    printed = platform.headrace("usage", "--tenant", "dev", "--format", "json")
    return Counter(row["screening"] for row in json.loads(printed.stdout))


@pytest.mark.parametrize("path", PATHS)
def test_a_forbidden_word_is_blocked_on_every_way(platform: Platform, http: Http, path: str) -> None:
    before = judged(platform)
    text = script("so ", "a ", *WORD, " and more")  # B162
    events = http.stream(path, ask(path, text))
    assert "p" not in text_of(path, events).replace("so a ", "")
    assert ending_of(path, events) == ({"refusal"} if path.endswith("messages") else {"content_filter"})
    whole = http.post(path, ask(path, text))
    assert whole.status_code == 200
    assert WORD not in json.dumps(whole.json().get("choices", whole.json().get("output", whole.json().get("content"))))
    wait_until(lambda: judged(platform) == before + Counter(blocked=2), "both are booked as blocked")


def test_a_block_ends_every_choice_once_over_grpc(platform: Platform) -> None:
    with platform.client() as client:
        events = list(client.generate("scripted", user(script("a ", WORD, " b")), n=2))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-1] == "incomplete" and kinds.count("incomplete") == 1
    assert events[-1].incomplete.reason == "content_filter"
    finished = [event.choice_finished for event in events if event.WhichOneof("event") == "choice_finished"]
    assert {(one.choice, one.reason) for one in finished} == {(0, "content_filter"), (1, "content_filter")}
    assert WORD not in "".join(event.delta.text for event in events)


@pytest.mark.parametrize("at", range(1, len(WORD)))
def test_no_split_lets_a_word_through(http: Http, at: int) -> None:
    text = script("!rate(50)", "x ", WORD[:at], WORD[at:], " y")  # B163
    events = http.stream(PATHS[0], ask(PATHS[0], text))
    assert text_of(PATHS[0], events) == "x "


def test_what_only_begins_like_it_is_released(platform: Platform, http: Http) -> None:
    before = judged(platform)
    events = http.stream(PATHS[0], ask(PATHS[0], script("!rate(50)", "x ", "persim", "on")))
    assert text_of(PATHS[0], events) == "x persimon"
    assert ending_of(PATHS[0], events) == {"stop"}
    wait_until(lambda: judged(platform) == before + Counter(passed=1), "it is booked as passed")


def test_an_address_is_redacted_wherever_it_is_cut(http: Http) -> None:
    for cut in ("user@exa|mple.com", "us|er@example.com", "user@example.|com"):
        left, right = cut.split("|")
        events = http.stream(PATHS[0], ask(PATHS[0], script("!rate(50)", "to ", left, right, " now", " please")))
        told = text_of(PATHS[0], events)
        assert "user" not in told and "example" not in told
        assert told.startswith("to [") and told.endswith(" now please")


def test_browsers_of_named_origins_need_no_key_to_ask(http: Http) -> None:
    def preflight(origin: str) -> int:
        headers = {"origin": origin, "access-control-request-method": "POST", "authorization": ""}
        return http.client.options(PATHS[0], headers=headers).status_code

    assert preflight("https://ours.example") == 204
    assert preflight("https://theirs.example") == 401
    told = http.client.get("/v1/models", headers={"origin": "https://ours.example"})
    assert told.headers["access-control-allow-origin"] == "https://ours.example"
