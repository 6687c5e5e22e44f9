"""The field's own faults of streaming: each case with its values, over every way in (B numbers)."""

import concurrent.futures
from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, script, user
from tests.integration.platform.http.ways import GrpcWay, HttpWay, Way
from tests.integration.platform.running_platform import Platform


@pytest.fixture(params=["grpc", "http-stream", "http-whole"])
def way(request: pytest.FixtureRequest, platform: Platform, http: Http) -> Way:
    if request.param == "grpc":
        return GrpcWay(platform)
    return HttpWay(http, stream=request.param == "http-stream")


def streams(way: Way) -> bool:
    return not (isinstance(way, HttpWay) and not way.streams)


def test_b01_an_error_is_the_one_ending(way: Way) -> None:
    found = way.run(user(script("Hel", "lo", "!err")))
    assert (found.ending, found.reasons) == ("engine_error", [])
    assert found.text == ("Hello" if streams(way) else "")


def test_b03_no_text_is_lost_at_the_limit(way: Way) -> None:
    found = way.run(user(script(*"abcdefgh")), max_output_tokens=5)
    assert (found.text, found.reasons, found.ending, found.usage[1]) == ("abcde", ["length"], "completed", 5)


@pytest.mark.parametrize("logprobs", [True, False])
def test_b05_the_reason_survives_log_probabilities(way: Way, logprobs: bool) -> None:
    found = way.run(user(script("a", "b")), logprobs=logprobs)
    assert (found.reasons, found.usage[1]) == (["stop"], 3)
    assert found.tokens == (["a", "b"] if logprobs else [])


def test_b07_usage_is_the_prompt_once_and_every_choice(way: Way) -> None:
    found = way.run(user("hi"), n=2)
    assert found.usage == (22, 6) and found.reasons == ["stop", "stop"]
    assert way.run(user(script("!repeat(300,a)")), max_output_tokens=197).usage[1] == 197


@pytest.mark.parametrize("split", [[[0xF0], [0x9F], [0x98], [0x80], [0x21]], [[0xF0, 0x9F], [0x98, 0x80], [0x21]]])
def test_b09_a_character_is_never_split(way: Way, split: list[Any]) -> None:
    found = way.run(user(script(*split)), max_output_tokens=len(split))
    assert found.pieces == (["\U0001f600", "!"] if streams(way) else ["\U0001f600!"])
    assert found.usage[1] == len(split)


def test_b11_a_decoder_fault_is_its_own_responses(way: Way) -> None:
    good, bad = script("!rate(50)", *"abcdef"), script("!rate(50)", "a", "b", 300, "c")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first, second, third = pool.map(lambda text: way.run(user(text)), [good, bad, good])
    assert second.ending == "decode_error"
    assert [(one.text, one.ending) for one in (first, third)] == [("abcdef", "completed")] * 2


def test_b12_a_stop_string_never_leaks(way: Way) -> None:
    stopped = way.run(user(script("Hi", "\n", "\n", "Us", "er", ":")), stop=["\n\nUser:"])
    assert (stopped.text, stopped.reasons, stopped.usage[1]) == ("Hi", ["stop"], 6)
    passed = way.run(user(script("Hi", "\n", "\n", "Us", "a")), stop=["\n\nUser:"])
    assert passed.text == "Hi\n\nUsa"
    assert not streams(way) or passed.pieces == ["Hi", "\n\nUsa"]


def test_b15_a_stop_that_never_comes_holds_nothing(way: Way) -> None:
    found = way.run(user(script("!rate(20)", "I ", "am ", "ok")), stop=["ZZZZZZZZ"])
    assert found.pieces == (["I ", "am ", "ok"] if streams(way) else ["I am ok"])


def test_b18_end_markers_stop_and_never_show(way: Way) -> None:
    found = way.run(user(script("o", "k", 259, 10, 258, "u", "s", "e", "r")), max_output_tokens=50)
    assert (found.text, found.reasons, found.usage[1]) == ("ok", ["stop"], 3)


def test_b20_what_only_looked_like_a_tag_comes_out(way: Way) -> None:
    found = way.run(user(script("<think>", "a", "</", "answer", "</think>", "ok")))
    assert (found.reasoning, found.text) == ("a</answer", "ok")
    assert way.run(user(script("<think>", "a", "</"))).reasoning == "a</"
    assert way.run(user(script("x", "</"))).text == "x</"
