"""Whether the text of a stream is what the model said: nothing lost, doubled, cut or shown that should not be."""

from typing import Any

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import END_TURN, Element, script, splits
from headrace_conformance.target import PLAIN, PLAIN_TOKENS, Target, first_choice, text_of
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_PIECES = [f"{number:02d} " for number in range(12)]
_CHARACTERS = ("é", "€", "\U0001f600", "\U0001f469\u200d\U0001f680")


@scripted
async def exact(target: Target) -> Verdict:
    stream, wanted = await target.play(*_PIECES, max_tokens=64), "".join(_PIECES)
    num_deltas = sum(1 for piece in stream.pieces if piece.text)
    return (
        passed(f"{len(_PIECES)} tokens in {num_deltas} deltas")
        if stream.text() == wanted
        else failed(f"the model said {wanted!r}, the stream {stream.text()!r}")
    )


async def stream_equals_whole(target: Target) -> Verdict:
    content = script("One", " and", " the", " same.") if target.scripted else PLAIN
    whole = await target.whole(content, max_tokens=PLAIN_TOKENS, seed=7)
    stream = ChunkStream(await target.chat(content, max_tokens=PLAIN_TOKENS, seed=7))
    if whole.status != 200:
        return failed(f"status {whole.status} without a stream")
    one, other = (text_of(whole), first_choice(whole).get("finish_reason")), (stream.text(), stream.finish())
    return passed(f"both {one[0][:60]!r}") if one == other else failed(f"whole {one}, streamed {other}")


@scripted
async def end_marker_hidden(target: Target) -> Verdict:
    stream = await target.play("o", "k", END_TURN, 10, 258, "u", "s", "e", "r", max_tokens=50)
    fine = (stream.text(), stream.finish()) == ("ok", "stop")
    return (
        passed("ok") if fine else failed(f"text {stream.text()!r}, finish {stream.finish()!r}; 'ok' and stop were due")
    )


@scripted
async def split_characters(target: Target) -> Verdict:
    problems, num_cases = [], 0
    for text in _CHARACTERS:
        for tokens in splits(text.encode()):
            elements: list[Element] = ["<", *tokens, ">"]
            got = (await target.play(*elements, max_tokens=32)).text()
            num_cases += 1
            if got != f"<{text}>":
                problems.append(f"{tokens} gave {got!r}")
    return judged(problems[:4], f"{len(_CHARACTERS)} characters cut in {num_cases} ways")


@scripted
async def invalid_bytes(target: Target) -> Verdict:
    stream = await target.play("a", [0xFF], "b", [0xF0, 0x9F], max_tokens=32)
    text, finish = stream.text(), stream.finish()
    if finish != "stop" or not text.startswith("a\ufffdb") or set(text) - set("ab\ufffd"):
        return failed(f"text {text!r}, finish {finish!r}")
    return passed(f"{text!r}")


async def same_seed(target: Target) -> Verdict:
    content = script("s", "e", "e", "d") if target.scripted else PLAIN
    fields: dict[str, Any] = {"max_tokens": PLAIN_TOKENS, "temperature": 1.0, "seed": 1234}
    first, second = await target.chat(content, **fields), await target.chat(content, **fields)
    if first.status == 400:
        return na("seed is not taken")
    one, other = ChunkStream(first).text(), ChunkStream(second).text()
    return passed(f"{one[:60]!r} twice") if one == other else failed(f"{one!r}, then {other!r}")


RULES = (
    Rule("text.exact", "A stream has exactly the text that the model made, in order",
         "a lost or repeated delta is a wrong answer", exact),
    Rule("text.stream-equals-whole", "The streamed text is the text of the same request without a stream",
         "how an answer travels must not change it", stream_equals_whole),
    Rule("text.end-marker", "The end marker of a turn ends it and is never shown, nor is what comes after",
         "a client must not read invented turns", end_marker_hidden),
    Rule("utf8.split-characters", "A character whose bytes come from several tokens arrives whole",
         "tokens are bytes; half a character decodes to rubbish", split_characters),
    Rule("utf8.invalid-bytes", "Bytes that are no character become U+FFFD and end nothing",
         "a model may say any bytes; a stream has to survive them", invalid_bytes),
    Rule("text.seed", "The same seed gives the same text",
         "a run that cannot be repeated cannot be debugged", same_seed),
)  # fmt: skip
