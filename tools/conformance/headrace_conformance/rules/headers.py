"""Headers of an answer, and whether a stream is delivered while it is made."""

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import script, stall
from headrace_conformance.target import PLAIN, Target
from headrace_conformance.tolerant import a_text
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_STALL_S = 1.0
_HEADER = "x-request-id"


async def request_id(target: Target) -> Verdict:
    given = "conformance-7f3a"
    headers = {_HEADER: given, **target.client.authorization()}
    whole = await target.whole(_content(target), headers=headers, max_tokens=2)
    body = target.body(_content(target), max_tokens=2)
    stream = await target.client.record("request-id", "chat", body, headers={_HEADER: given})
    found = {"whole": whole.headers.get(_HEADER), "stream": stream.headers.get(_HEADER)}
    return judged([f"{how}: {value!r}" for how, value in found.items() if value != given], "echoed on both")


async def hostile_request_id(target: Target) -> Verdict:
    given = "x" * 200
    headers = {_HEADER: given, **target.client.authorization()}
    answer = await target.whole(_content(target), headers=headers, max_tokens=2)
    if answer.status != 200:
        return failed(f"status {answer.status}")
    return failed("200 characters are echoed") if answer.headers.get(_HEADER) == given else passed("not echoed")


async def response_id(target: Target) -> Verdict:
    stream = ChunkStream(await target.chat(_content(target), max_tokens=2))
    given = stream.recording.headers.get("x-headrace-response-id")
    if given is None:
        return na("no x-headrace-response-id: the server is not Headrace")
    first = a_text(next(iter(stream.chunks.values()), {}).get("id"))
    return passed(given) if first == given else failed(f"header {given!r}, first chunk {first!r}")


@scripted
async def live(target: Target) -> Verdict:
    stream = await target.play("early", stall(_STALL_S), " late", max_tokens=8)
    arrivals = [stream.recording.events[piece.at].at_s for piece in stream.pieces if piece.text]
    if len(arrivals) < 2:
        return failed(f"{len(arrivals)} deltas around a pause of {_STALL_S:g} s: the stream is held back")
    gap = arrivals[-1] - arrivals[0]
    return (
        passed(f"{gap:.2f} s apart")
        if gap > 0.6 * _STALL_S
        else failed(f"the model paused {_STALL_S:g} s between two deltas that came {gap:.2f} s apart")
    )


def _content(target: Target) -> str:
    return script("o", "k") if target.scripted else PLAIN


RULES = (
    Rule("headers.request-id", "The caller's x-request-id is echoed", "people match their logs with it", request_id),
    Rule("headers.request-id-bounds", "An x-request-id of 200 characters is not echoed and refuses nothing",
         "what is echoed unbounded ends up in every log line", hostile_request_id),
    Rule("headers.response-id", "The response id of the header is the id of the chunks",
         "one response has one name", response_id),
    Rule("headers.live", "Deltas are delivered when they are made, not at the end",
         "a stream that is held back is no stream", live),
)  # fmt: skip
