"""Usage in a chat or completions stream: asked for or not, where it stands, and whether it adds up."""

from headrace_conformance.checks.check import CHUNKED, Check
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_count
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")


def only_if_asked(recording: Recording) -> Verdict:
    stream = ChunkStream(recording)
    if stream.asked_for_usage:
        return na("usage was asked for")
    return judged([f"usage at event {at}" for at in stream.usages()], "no usage where none was asked for")


def one_usage_chunk(recording: Recording) -> Verdict:
    stream = ChunkStream(recording)
    if not stream.asked_for_usage or stream.failed:
        return na("the stream failed" if stream.failed else "usage was not asked for")
    usages = list(stream.usages())
    if len(usages) != 1:
        return failed(f"{len(usages)} chunks with usage, asked for one")
    if stream.chunks[usages[0]].get("choices") != []:
        return failed(f"the chunk with usage has choices: {stream.chunks[usages[0]].get('choices')}")
    later = [at for at in stream.chunks if at > usages[0]]
    return (
        failed(f"chunks behind the usage: {later}") if later else passed("one usage chunk, the last, without choices")
    )


def adds_up(recording: Recording) -> Verdict:
    usages = ChunkStream(recording).usages().values()
    problems: list[str] = []
    for usage in usages:
        prompt, completion, total = (a_count(usage.get(name)) for name in _FIELDS)
        if prompt is None or completion is None or total != prompt + completion:
            problems.append(", ".join(f"{name} {usage.get(name)!r}" for name in _FIELDS))
    return judged(problems, "total = prompt + completion") if usages else na("no usage")


CHECKS = (
    Check("usage.only-if-asked", "A stream carries usage only if it was asked for",
          "a chunk without choices breaks clients that read choices[0]", CHUNKED, only_if_asked),
    Check("usage.chunk", "Usage that was asked for comes in one last chunk without choices",
          "clients look for it there, and a gateway that drops it bills nothing", CHUNKED, one_usage_chunk),
    Check("usage.sum", "total_tokens is prompt_tokens plus completion_tokens",
          "bills are made from these", CHUNKED, adds_up),
)  # fmt: skip
