"""Requests from plain values."""

import pytest

from headrace_cli.client import build_request


def test_prompts_are_text_ids_or_messages() -> None:
    assert build_request("m", "hi").text == "hi"
    assert list(build_request("m", [1, 2]).tokens.ids) == [1, 2]
    assert build_request("m", [{"role": "user", "content": "hi"}]).chat.messages[0].content == "hi"
    assert not build_request("m", []).chat.messages  # the server refuses it by name


@pytest.mark.parametrize("prompt", [[1, "a"], [1, {"role": "user"}], ["a"]])
def test_mixtures_are_refused(prompt: list[object]) -> None:
    with pytest.raises(TypeError):
        build_request("m", prompt)  # type: ignore[arg-type]


def test_options_find_their_message() -> None:
    request = build_request("m", "x", temperature=0.5, logit_bias={5: -1.0}, stop=["a"], max_output_tokens=3, seed=None)
    assert request.sampling.temperature == 0.5 and request.sampling.logit_bias[5] == -1.0
    assert list(request.stop) == ["a"] and request.max_output_tokens == 3
    assert not request.sampling.HasField("seed")


@pytest.mark.parametrize("name", ["nonsense", "chat", "sampling", "text", "input"])
def test_unknown_options_are_refused(name: str) -> None:
    options: dict[str, object] = {name: 1}
    with pytest.raises(TypeError, match=name):
        build_request("m", "x", **options)
