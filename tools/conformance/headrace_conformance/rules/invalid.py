"""Requests that no server can serve are a 400 that names the field; shapes that real clients send are taken."""

from collections.abc import Sequence
from typing import Any

from headrace_conformance.rule import Rule
from headrace_conformance.script import script
from headrace_conformance.target import PLAIN, Target, text_of
from headrace_conformance.tolerant import a_text, an_object
from headrace_conformance.verdict import Verdict, failed, judged

_ABSENT = object()
_NAMELESS = "clients show the answer to the person who can mend the request"

# field: values of which each is a 400 that names the field.
_BAD: dict[str, Sequence[Any]] = {
    "model": [_ABSENT, None, "", 7],
    "messages": [_ABSENT, None, [], {}, "hi", [None], [{}], [{"role": "nobody", "content": "x"}],
                 [{"role": "user", "content": 7}], [{"role": "user", "content": [{"type": "bogus"}]}]],
    "max_tokens": [0, -1, 1.5, True, "8"],
    "temperature": [-0.1, "hot", True],
    "top_p": [-0.1, 1.1, "x"],
    "n": [0, -1, 1.5, "2", 10**9],
    "stop": [7, [7], {"a": "b"}, [""]],
    "stream": ["yes", 1],
    "stream_options": ["x", {"include_usage": "yes"}],
    "seed": ["x", 1.5, 2**64],
    "presence_penalty": [2.1, -2.1, "x"],
    "frequency_penalty": [2.1, -2.1, "x"],
    "top_logprobs": [-1, 21, 10**6, "5"],
    "logprobs": ["yes", 1],
    "logit_bias": [[1], {"x": 1}, {"5": 101}, {"-1": 1}],
    "tool_choice": ["bogus", 7],
    "response_format": ["json", {"type": "bogus"}],
}  # fmt: skip
_WITH: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}


def _refuses(field: str, values: Sequence[Any]) -> Rule:
    async def probe(target: Target) -> Verdict:
        problems = []
        for value in values:
            body = {**target.body(_content(target), stream=False, max_tokens=4), **_WITH.get(field, {}), field: value}
            if value is _ABSENT:
                del body[field]
            answer = await target.client.send("POST", "/v1/chat/completions", json=body)
            error = an_object(an_object(answer.json).get("error"))
            shown = "(absent)" if value is _ABSENT else repr(value)
            if answer.status != 400:
                problems.append(f"{shown}: status {answer.status}")
            elif error and not _names(error, field):
                problems.append(f"{shown}: param {error.get('param')!r}, message {error.get('message')!r}")
        return judged(problems, f"{len(values)} bad values are 400 and name it")

    title = f"A bad value of {field} is a 400 that names it"
    return Rule(f"invalid.{field}", title, _NAMELESS, probe)


def _names(error: dict[str, Any], field: str) -> bool:
    """Whether an error says which field is wrong. That there is an error object at all is the rule errors.shape."""
    return a_text(error.get("param")).startswith(field) or field in a_text(error.get("message"))


async def top_logprobs_alone(target: Target) -> Verdict:
    answer = await target.whole(_content(target), top_logprobs=5, max_tokens=4)
    return judged([f"status {answer.status}"] if answer.status != 400 else [], "400")


async def not_finite(target: Target) -> Verdict:
    problems = []
    for field in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        for number in ("NaN", "Infinity", "-Infinity", "1e999"):
            answer = await target.client.send("POST", "/v1/chat/completions", content=_raw(target, field, number))
            if answer.status != 400 or answer.json is None:
                problems.append(f"{field} {number}: status {answer.status}, {answer.body[:60]!r}")
    return judged(problems, "16 numbers that are none")


async def broken_body(target: Target) -> Verdict:
    problems = []
    for body in (b"", b"{", b"[]", b'"hi"', b"null", b"\xff\xfe", b'{"model":' + b"[" * 5000):
        answer = await target.client.send("POST", "/v1/chat/completions", content=body)
        if answer.status != 400 or answer.json is None:
            problems.append(f"body {body[:20]!r}: status {answer.status}")
    return judged(problems, "7 bodies that are no JSON object")


async def null_is_absent(target: Target) -> Verdict:
    names = ("temperature", "top_p", "stop", "n", "seed", "stream", "stream_options", "logprobs", "tools",
             "presence_penalty", "logit_bias", "user")  # fmt: skip
    plain = {"model": target.model, "messages": [{"role": "user", "content": _content(target)}], "max_tokens": 8}
    greedy = {**plain, "seed": 7, "temperature": 0}
    answers = [
        await target.client.send("POST", "/v1/chat/completions", json=body)
        for body in ({**dict.fromkeys(names), **greedy}, greedy, {**plain, **dict.fromkeys(names)})
    ]
    if any(answer.status != 200 for answer in answers):
        return failed(f"status {[answer.status for answer in answers]} with null in {', '.join(names)}")
    same = text_of(answers[0]) == text_of(answers[1])
    return judged([] if same else [f"{text_of(answers[0])!r} with nulls, {text_of(answers[1])!r} without"], "same text")


async def taken(target: Target) -> Verdict:
    """Shapes that real clients send."""
    content, problems = _content(target), []
    user: dict[str, Any] = {"role": "user", "content": content}
    shapes: dict[str, dict[str, Any]] = {
        "an unknown field": {"foo": 1},
        "advisory fields": {"store": False, "user": "me", "metadata": {"a": "b"}, "service_tier": "auto"},
        "content as text parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": content}]}]},
        "an empty assistant turn": {"messages": [user, {"role": "assistant", "content": ""}, user]},
        "a developer message": {"messages": [{"role": "developer", "content": "Be brief."}, user]},
        "stop as a string": {"stop": "ZZZZ"},
        "top_p 0": {"top_p": 0, "temperature": 1},
        "a tiny temperature": {"temperature": 1e-300},
        "no limit": {"max_tokens": None, "max_completion_tokens": 4},
    }
    for name, change in shapes.items():
        body = {**target.body(content, stream=False, max_tokens=4), **change}
        answer = await target.client.send("POST", "/v1/chat/completions", json=body)
        if answer.status != 200:
            problems.append(f"{name}: status {answer.status} {answer.body[:100]!r}")
    return judged(problems, "9 shapes that real clients send")


def _content(target: Target) -> str:
    return script("o", "k") if target.scripted else PLAIN


def _raw(target: Target, field: str, number: str) -> bytes:
    """JSON text by hand: no writer of JSON makes these."""
    text = '{"model": "%s", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "%s": %s}'
    return (text % (target.model, field, number)).encode()


RULES = (
    *(_refuses(field, values) for field, values in _BAD.items()),
    Rule("invalid.top_logprobs-alone", "top_logprobs without logprobs is a 400",
         "the client asked for something that it will not get", top_logprobs_alone),
    Rule("invalid.not-finite", "NaN, infinities and overflowing numbers are a 400 with a JSON body",
         "they pass careless comparisons and reach the sampler", not_finite),
    Rule("invalid.body", "A body that is no JSON object is a 400 with a JSON error",
         "a 500 says that the server is broken, not the request", broken_body),
    Rule("accept.null", "null means absent for every optional field",
         "typed clients write their unset fields as null", null_is_absent),
    Rule("accept.shapes", "Shapes that real clients send are taken",
         "unknown and advisory fields, text parts and empty turns are everyday traffic", taken),
)  # fmt: skip
