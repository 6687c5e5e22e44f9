"""Usage against what was generated."""

from typing import Any

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import Element, num_tokens, script
from headrace_conformance.target import PLAIN, PLAIN_TOKENS, Target, usage_of
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_ASKED: dict[str, Any] = {"stream_options": {"include_usage": True}}


def _usage(stream: ChunkStream) -> dict[str, Any]:
    return next(iter(stream.usages().values()), {})


async def counts(target: Target) -> Verdict:
    if not target.scripted:
        return await _stream_against_whole(target)
    problems = []
    for length in (1, 7, 97):
        elements: list[Element] = ["ab"] * length
        stream = await target.play(*elements, max_tokens=128, **_ASKED)
        whole = await target.whole(script(*elements), max_tokens=128)
        for how, usage in (("streamed", _usage(stream)), ("whole", usage_of(whole))):
            if usage.get("completion_tokens") != num_tokens(elements):
                problems.append(f"{how}: {usage.get('completion_tokens')} of {num_tokens(elements)} tokens")
    return judged(problems, "completion_tokens is every generated token, the end included")


async def _stream_against_whole(target: Target) -> Verdict:
    streamed = _usage(ChunkStream(await target.chat(PLAIN, max_tokens=PLAIN_TOKENS, seed=7, **_ASKED)))
    whole = usage_of(await target.whole(PLAIN, max_tokens=PLAIN_TOKENS, seed=7))
    names = ("prompt_tokens", "completion_tokens")
    pairs = {name: (streamed.get(name), whole.get(name)) for name in names}
    return judged([f"{name}: streamed {a}, whole {b}" for name, (a, b) in pairs.items() if a != b or not a], f"{pairs}")


@scripted
async def every_choice_counts(target: Target) -> Verdict:
    one, two = await target.play("h", "i", n=1, **_ASKED), await target.play("h", "i", n=2, **_ASKED)
    if two.recording.status != 200:
        return na(f"n=2 is answered with status {two.recording.status}")
    single, double = _usage(one), _usage(two)
    problems = []
    if double.get("completion_tokens") != 2 * (single.get("completion_tokens") or -1):
        problems.append(f"one choice {single.get('completion_tokens')}, two {double.get('completion_tokens')}")
    if double.get("prompt_tokens") != single.get("prompt_tokens"):
        problems.append(f"prompt {single.get('prompt_tokens')} with one choice, {double.get('prompt_tokens')} with two")
    return judged(problems, "the prompt counts once, each choice counts")


@scripted
async def stop_string_counts(target: Target) -> Verdict:
    elements: list[Element] = ["Hi", ",", "\n", "\nUser: and", "never", "counted"]
    usage = _usage(await target.play(*elements, stop=["\nUser:"], max_tokens=40, **_ASKED))
    found = usage.get("completion_tokens")
    return (
        passed("4, up to the token that completed it")
        if found == 4
        else failed(f"{found} tokens; 4 were due, up to and including the token that completed the stop string")
    )


@scripted
async def failure_hides_nothing(target: Target) -> Verdict:
    """After a failure the next answer has its own usage: nothing of the failed one is added."""
    await target.play("a", "b", "c", "!err", **_ASKED)
    found = _usage(await target.play("x", **_ASKED)).get("completion_tokens")
    return passed("2") if found == 2 else failed(f"{found} tokens behind a failed response, 2 were due")


RULES = (
    Rule("usage.counts", "completion_tokens is what was generated, streamed or not",
         "bills, quotas and limits are made from it", counts),
    Rule("usage.choices", "Every choice is counted, and the prompt once",
         "n answers cost n outputs over one prompt", every_choice_counts),
    Rule("usage.stop-string", "A stop string is counted up to the token that completed it",
         "these tokens were generated, though nobody saw them", stop_string_counts),
    Rule("usage.after-failure", "The usage of an answer has nothing of a failed one before it",
         "counts that outlive their response bill the next one", failure_hides_nothing),
)  # fmt: skip
