"""How a server refuses, and how it fails after it has begun."""

import asyncio
from collections.abc import AsyncIterator

from headrace_conformance import schema
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.client import Answer
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import ERROR, script
from headrace_conformance.target import Target
from headrace_conformance.tolerant import an_object
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_TOO_LARGE_BYTES = 64 << 20
_WRONG_KEY = {"authorization": "Bearer sk-this-is-nobody"}


async def _chat(target: Target, headers: dict[str, str], **fields: object) -> Answer:
    body = {**target.body("hi", stream=False, max_tokens=2), **fields}
    return await target.client.send("POST", "/v1/chat/completions", json=body, headers=headers)


async def no_key(target: Target) -> Verdict:
    if not target.client.api_key:
        return na("the server is used without a key")
    answers = {path: await target.client.send("GET", path, headers={}) for path in ("/v1/models", "/v1/nothing")}
    answers["/v1/chat/completions"] = await _chat(target, {})
    wrong = [f"{path}: status {answer.status}" for path, answer in answers.items() if answer.status != 401]
    return judged(wrong, f"401 at {', '.join(answers)}")


async def wrong_key(target: Target) -> Verdict:
    if not target.client.api_key:
        return na("the server is used without a key")
    status = (await _chat(target, _WRONG_KEY)).status
    return passed("401") if status == 401 else failed(f"status {status} with a key of nobody")


async def unknown_model(target: Target) -> Verdict:
    answer = await _chat(target, target.client.authorization(), model="no-such-model")
    return passed("404") if answer.status == 404 else failed(f"status {answer.status}: {answer.body[:120]!r}")


async def unknown_path(target: Target) -> Verdict:
    wrong = []
    for method, path, allowed in (("GET", "/v1/nothing", (404,)), ("GET", "/v1/chat/completions", (404, 405)),
                                  ("POST", "/v1/embeddings", (200, 400, 404))):  # fmt: skip
        answer = await target.client.send(method, path, json={} if method == "POST" else None)
        if answer.status not in allowed:
            wrong.append(f"{method} {path}: status {answer.status}")
    return judged(wrong, "404 or 405")


async def too_large(target: Target) -> Verdict:
    """Sent in pieces without a length: a server that only looks at content-length reads on for ever."""
    headers = {**target.client.authorization(), "content-type": "application/json"}
    answer = await target.client.send("POST", "/v1/chat/completions", headers=headers, content=_flood())
    return passed("413") if answer.status == 413 else failed(f"{_TOO_LARGE_BYTES >> 20} MiB: status {answer.status}")


async def shapes(target: Target) -> Verdict:
    key = target.client.authorization()
    answers = {
        "unknown model": await _chat(target, key, model="no-such-model"),
        "bad temperature": await _chat(target, key, temperature="hot"),
        "unknown path": await target.client.send("GET", "/v1/nothing"),
        "broken body": await target.client.send("POST", "/v1/chat/completions", content=b"{"),
    }
    if target.client.api_key:
        answers["no key"] = await _chat(target, {})
    problems = []
    for name, answer in answers.items():
        if answer.status < 400:
            continue
        kind = answer.headers.get("content-type", "").partition(";")[0]
        wrong = (
            [f"content-type {kind}"] if kind != "application/json" else schema.problems("ErrorResponse", answer.json)
        )
        problems += [f"{name}: {one}" for one in wrong]
    return judged(problems, ", ".join(answers))


@scripted
async def after_output(target: Target) -> Verdict:
    stream = await target.play("Hel", "lo", ERROR)
    if stream.text() != "Hello":
        return failed(f"the output before the error is {stream.text()!r}, 'Hello' was due")
    if not stream.failed or stream.finish() or "done" in stream.kinds:
        return failed(f"events {stream.kinds}, finish reason {stream.finish()!r}: it looks complete")
    return passed(f"error {stream.errors[0].get('code')!r} behind the text")


@scripted
async def without_stream(target: Target) -> Verdict:
    answer = await target.whole(script("Hel", "lo", ERROR))
    problems = [] if answer.status >= 500 else [f"status {answer.status}"]
    problems += schema.problems("ErrorResponse", answer.json)
    if "x-headrace-response-id" in answer.headers and not an_object(an_object(answer.json).get("error")).get(
        "response_id"
    ):
        problems.append("the error has no response_id, though an identity was opened")
    return judged(problems, f"status {answer.status}")


@scripted
async def neighbours(target: Target) -> Verdict:
    """Three at once, the middle one fails: the others say what they say alone."""
    one, broken, other = await asyncio.gather(
        target.play("first", " is", " fine"), target.play("a", "b", ERROR), target.play("third", " is", " fine")
    )
    texts = (one.text(), other.text())
    if texts != ("first is fine", "third is fine"):
        return failed(f"neighbours of a failure ({broken.kinds}) say {texts}")
    return passed("the neighbours are whole")


@scripted
async def first_token(target: Target) -> Verdict:
    """An error before any output: a refusal, or a stream with nothing but the error."""
    stream: ChunkStream = await target.play(ERROR)
    if stream.recording.status != 200:
        return passed(f"status {stream.recording.status}")
    fine = stream.failed and not stream.text() and not stream.finish()
    return passed("a stream with an error only") if fine else failed(f"events {stream.kinds}, text {stream.text()!r}")


async def _flood() -> AsyncIterator[bytes]:
    yield b'{"model": "'
    for _ in range(_TOO_LARGE_BYTES >> 20):
        yield b"x" * (1 << 20)


RULES = (
    Rule("errors.no-key", "Without a key everything is a 401, also what does not exist",
         "a stranger must not find out what there is", no_key),
    Rule("errors.wrong-key", "A key of nobody is a 401", "403 and 404 make clients look elsewhere", wrong_key),
    Rule("errors.unknown-model", "An unknown model is a 404", "clients tell a typing error from an outage by it",
         unknown_model),
    Rule("errors.unknown-path", "What is not served is a 404 or 405", "a 500 would be retried for ever", unknown_path),
    Rule("errors.too-large", "A body over the limit is a 413", "a body without a bound is memory without a bound",
         too_large),
    Rule("errors.shape", "Every refusal is JSON with message, type, param and code",
         "clients raise typed errors from it", shapes),
    Rule("errors.after-output", "A failure behind output is an error, not a finish reason and not [DONE]",
         "half an answer must not look like a whole one", after_output),
    Rule("errors.before-output", "A failure before output is a refusal or an error, never an empty answer",
         "an empty answer looks like a model with nothing to say", first_token),
    Rule("errors.without-stream", "A failed answer that was not streamed is a 5xx with an error body",
         "there is no other way to tell", without_stream),
    Rule("errors.neighbours", "The failure of one response does not touch its neighbours",
         "they share a batch, not a fate", neighbours),
)  # fmt: skip
