"""Stop strings: found wherever tokens cut them, never shown, and nothing else withheld."""

from collections.abc import Iterator

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import Element
from headrace_conformance.target import PLAIN, PLAIN_TOKENS, Target
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_BEFORE, _STOP, _AFTER = "Hi", "\n\nUser:", "no"


async def never_shown(target: Target) -> Verdict:
    if not target.scripted:
        return await _against_control(target)
    problems, cuts = [], list(_cuts())
    for tokens in cuts:
        stream = await target.play(*tokens, stop=[_STOP], max_tokens=40)
        if (stream.text(), stream.finish()) != (_BEFORE, "stop"):
            problems.append(f"tokens {tokens} gave {stream.text()!r} and {stream.finish()!r}")
    return judged(problems[:3], f"{len(cuts)} ways to cut it into tokens")


@scripted
async def near_miss(target: Target) -> Verdict:
    problems = []
    for stop, tokens in (
        (_STOP, ["Hi", "\n", "\n", "Us", "a"]),
        (_STOP, ["Hi", "\n\nUser"]),
        ("ZZZZZZZZ", ["I ", "am ", "ok"]),
        ("aab", ["a", "a", "a", "c"]),
        ("</end>", ["x", "</", "</en", "d"]),
    ):
        text = (await target.play(*tokens, stop=[stop], max_tokens=40)).text()
        if text != "".join(tokens):
            problems.append(f"stop {stop!r} on {tokens} gave {text!r}")
    return judged(problems, "5 beginnings of a stop string that came to nothing")


@scripted
async def many(target: Target) -> Verdict:
    stops = [f"<{number}>" for number in range(14)] + ["cd", "bcd"]
    stream = await target.play("abcde", "<3>", stop=stops, max_tokens=40)
    if stream.recording.status == 400:
        return na(f"{len(stops)} stop strings are refused: {stream.recording.body[:120]!r}")
    return (
        passed("16 strings, the one that begins first wins")
        if stream.text() == "a"
        else failed(f"stop strings 'cd' and 'bcd' on 'abcde' left {stream.text()!r}, 'a' was due")
    )


@scripted
async def every_choice(target: Target) -> Verdict:
    stream = await target.play("one", " stop", " two", n=2, stop=["stop"], max_tokens=40)
    if stream.recording.status != 200:
        return na(f"n=2 is answered with status {stream.recording.status}")
    found = {choice: (stream.text(choice), stream.finish(choice)) for choice in sorted(stream.choices())}
    fine = found and set(found.values()) == {("one ", "stop")}
    return passed(f"choices {list(found)}") if fine else failed(f"choices ended as {found}")


async def _against_control(target: Target) -> Verdict:
    """For any model: the stop string is taken from what the model says without one."""
    control = ChunkStream(await target.chat(PLAIN, max_tokens=PLAIN_TOKENS, seed=7)).text()
    if len(control) < 6:
        return na(f"the model says too little: {control!r}")
    problems = []
    for length in (1, 2, 4):
        stop = control[len(control) // 2 :][:length]
        stream = ChunkStream(await target.chat(PLAIN, max_tokens=PLAIN_TOKENS, seed=7, stop=[stop]))
        if stream.text() != control.partition(stop)[0]:
            problems.append(f"stop {stop!r} in {control!r} left {stream.text()!r}")
    return judged(problems, f"3 pieces of {control[:40]!r}")


def _cuts() -> Iterator[list[Element]]:
    """The text cut once at every place around and in the stop string, in characters, and not at all."""
    text = _BEFORE + _STOP + _AFTER
    yield [text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    yield list(text)


RULES = (
    Rule("stop.never-shown", "No part of a stop string is shown, however tokens cut it",
         "a stop string that leaks ends up in the client's next prompt", never_shown),
    Rule("stop.near-miss", "Text that only began like a stop string is delivered in full",
         "what is held back and never released is lost", near_miss),
    Rule("stop.many", "Of many stop strings the one that begins first wins",
         "the others are part of text that was never said", many),
    Rule("stop.every-choice", "Stop strings end every choice by itself",
         "each choice has its own text", every_choice),
)  # fmt: skip
