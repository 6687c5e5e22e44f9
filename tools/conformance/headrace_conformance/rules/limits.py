"""The output limit that a client declares."""

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.rule import Rule
from headrace_conformance.script import script
from headrace_conformance.target import PLAIN, Target, first_choice
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_LETTERS = "abcdefgh"
_ASKED = {"stream_options": {"include_usage": True}}


def _content(target: Target) -> str:
    return script(*_LETTERS) if target.scripted else PLAIN


async def honoured(target: Target) -> Verdict:
    problems = []
    for limit in (1, 2, 5):
        stream = ChunkStream(await target.chat(_content(target), max_tokens=limit))
        if stream.finish() != "length":
            problems.append(f"max_tokens {limit} ends with {stream.finish()!r}")
        if target.scripted and stream.text() != _LETTERS[:limit]:
            problems.append(f"max_tokens {limit} gave {stream.text()!r}")
    return judged(problems, "1, 2 and 5 tokens, each ends with length")


async def exact_end(target: Target) -> Verdict:
    """The end of the script and the limit fall on the same token: the model ended by itself."""
    if not target.scripted:
        return na(f"the model {target.model!r} plays no scripts")
    stream = await target.play("a", "b", max_tokens=3)
    fine = (stream.text(), stream.finish()) == ("ab", "stop")
    return passed("stop") if fine else failed(f"text {stream.text()!r}, finish {stream.finish()!r}")


async def both_names(target: Target) -> Verdict:
    old = await target.whole(_content(target), max_tokens=3)
    new = await target.whole(_content(target), max_completion_tokens=3)
    one, other = first_choice(old), first_choice(new)
    fine = old.status == new.status == 200 and one.get("finish_reason") == other.get("finish_reason") == "length"
    return (
        passed("both give length")
        if fine
        else failed(
            f"max_tokens: status {old.status}, {one.get('finish_reason')}; "
            f"max_completion_tokens: status {new.status}, {other.get('finish_reason')}"
        )
    )


async def too_large(target: Target) -> Verdict:
    problems = []
    for limit in (10**9, 2**31, 2**63):
        answer = await target.whole(_content(target), max_tokens=limit)
        if answer.status != 400:
            problems.append(f"max_tokens {limit}: status {answer.status}")
    alive = await target.whole(_content(target), max_tokens=2)
    if alive.status != 200:
        problems.append(f"the next request is answered with status {alive.status}")
    return judged(problems, "refused with 400, and the server lives")


RULES = (
    Rule("limit.honoured", "max_tokens ends the answer there, with finish reason length",
         "it is what the client is ready to pay for", honoured),
    Rule("limit.exact-end", "A model that ends on its last allowed token ended by itself",
         "length would make the client ask for a rest that does not exist", exact_end),
    Rule("limit.both-names", "max_completion_tokens and max_tokens mean the same",
         "clients send either", both_names),
    Rule("limit.too-large", "A limit over what the model can hold is refused with 400 and harms nobody",
         "a token limit is a promise of memory", too_large),
)  # fmt: skip
