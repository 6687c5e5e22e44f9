"""A client that does not read: over the cap it ends alone, explicitly, and in order (decision 20)."""

import json
from collections.abc import Iterator

import pytest

from tests.integration.platform.http.http_client import parse
from tests.integration.platform.http.metrics import metric
from tests.integration.platform.http.raw_http import RawHttp
from tests.integration.platform.running_platform import Platform, running_platform, wait_until
from tests.integration.platform.test_streams import num_open

CAP_BYTES = 200_000
NUM_TOKENS, TOKEN_BYTES = 3_500, 4_000  # 14 MB: more than the transport takes in on its own
LONG = [{"role": "user", "content": json.dumps([f"!repeat({NUM_TOKENS},{'x' * TOKEN_BYTES})"])}]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("HEADRACE_GATEWAY_MAX_BUFFERED_BYTES", str(CAP_BYTES))
        with running_platform(tmp_path_factory.mktemp("slow")) as platform:
            yield platform


def test_the_slowest_reader_ends_and_nobody_else(platform: Platform) -> None:
    with platform.client() as slow, platform.client() as quick:
        stream = slow.generate("scripted", LONG, max_output_tokens=NUM_TOKENS)
        events = iter(stream)
        assert next(events).WhichOneof("event") == "created"
        steady = [{"role": "user", "content": json.dumps(["a", "!rate(50)", "!repeat(60,b)"])}]
        neighbour = quick.generate("scripted", steady)
        assert neighbour.text() == "a" + "b" * 60
        wait_until(lambda: num_open(platform) == 0, "the slow stream ended at the gateway")
        rest = list(events)  # the client checks the order of what it still gets
    assert rest[-1].WhichOneof("event") == "cancelled"
    assert rest[-1].cancelled.reason == "slow_client"
    assert sum(len(event.delta.text) for event in rest) < NUM_TOKENS * TOKEN_BYTES


def test_over_http_it_is_told_in_an_error_and_gets_no_done(platform: Platform) -> None:
    cancelled = 'responses_total{model="scripted",outcome="cancelled"}'
    before = metric(platform, cancelled)
    with RawHttp(platform, receive_bytes=65536) as slow:
        body = {"model": "scripted", "messages": LONG, "max_tokens": NUM_TOKENS, "stream": True}
        slow.post("/v1/chat/completions", body, version="1.0")
        wait_until(lambda: metric(platform, cancelled) == before + 1, "it ended at the gateway, unread")
        head, text = slow.rest()
    assert head.startswith("HTTP/1.1 200")
    events = [event.data for event in parse(text)]
    assert events[-1]["error"]["code"] == "slow_client"
    assert "[DONE]" not in events and not any("error" in event for event in events[:-1])
    assert len(text) < NUM_TOKENS * TOKEN_BYTES
