"""The gRPC contract, live: recorded calls through the pure checks, then questions of their own."""

from collections.abc import Awaitable, Callable
from functools import wraps

from headrace_conformance.checks.grpc_events import CHECKS, Call, CallCheck
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.grpc_client import Ask, GrpcClient
from headrace_conformance.rule import Probe, Rule
from headrace_conformance.script import ERROR, rate, repeat, script
from headrace_conformance.target import PLAIN, PLAIN_TOKENS, Target
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_Asking = Callable[[Target, GrpcClient, Ask], Awaitable[Verdict]]


def _connected(asking: _Asking) -> Probe:
    @wraps(asking)
    async def probe(target: Target) -> Verdict:
        client = GrpcClient(target.options.grpc, target.options.api_key)
        try:
            return await asking(target, client, Ask(target.model))
        finally:
            await client.close()

    return probe


def _content(target: Target) -> str:
    return script("Head", "race", " says", " hello", ".") if target.scripted else PLAIN


async def _calls(target: Target, client: GrpcClient, ask: Ask) -> tuple[Call, ...]:
    """The calls that the pure checks look at."""
    content = _content(target)
    calls = [
        await client.generate("plain", ask.chat(content, max_output_tokens=PLAIN_TOKENS)),
        await client.generate("n", ask.chat(content, max_output_tokens=PLAIN_TOKENS, n=2)),
        await client.generate("length", ask.chat(content, max_output_tokens=2)),
        await client.generate("refused", Ask("no-such-model").chat(content)),
        await client.generate("bad", ask.chat(content, max_output_tokens=0)),
        await client.generate_and_cancel("cancelled", ask.chat(_long(target), max_output_tokens=400)),
    ]
    if target.scripted:
        calls.append(await client.generate("failed", ask.chat(script("Hel", "lo", ERROR))))
        calls.append(await client.generate("stop", ask.chat(script("a", "bST", "OPc"), stop=["STOP"])))
    return tuple(calls)


def _long(target: Target) -> str:
    return script(rate(50), repeat(300, "x ")) if target.scripted else "Write a very long story."


def _over_calls(check: CallCheck) -> Rule:
    async def asking(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
        return check.over(await _calls(target, client, ask))

    return Rule(check.id, check.title, check.reason, _connected(asking))


@_connected
async def same_as_http(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
    request = ask.chat(_content(target), max_output_tokens=PLAIN_TOKENS)
    request.sampling.seed = 7
    call = await client.generate("same", request)
    stream = ChunkStream(await target.chat(_content(target), max_tokens=PLAIN_TOKENS, seed=7))
    one, other = call.text(), stream.text()
    return passed(f"{one[:60]!r}") if one == other else failed(f"gRPC {one!r}, HTTP {other!r}")


@_connected
async def refusals(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
    content, problems = _content(target), []
    nan = ask.chat(content)
    nan.sampling.temperature = float("nan")
    for name, request, due in (
        ("unknown model", Ask("no-such-model").chat(content), "NOT_FOUND"),
        ("max_output_tokens 0", ask.chat(content, max_output_tokens=0), "INVALID_ARGUMENT"),
        ("n 0", ask.chat(content, n=0), "INVALID_ARGUMENT"),
        ("temperature NaN", nan, "INVALID_ARGUMENT"),
        ("max_output_tokens 2^62", ask.chat(content, max_output_tokens=2**62), "INVALID_ARGUMENT"),
    ):
        call = await client.generate(name, request)
        if call.events or call.status != due:
            problems.append(f"{name}: {len(call.events)} events, {call.status}, {due} was due")
    return judged(problems, "5 requests that cannot be served")


async def no_key(target: Target) -> Verdict:
    if not target.options.api_key:
        return na("the server is used without a key")
    client = GrpcClient(target.options.grpc, "sk-this-is-nobody")
    try:
        call = await client.generate("stranger", Ask(target.model).chat("hi"))
    finally:
        await client.close()
    fine = call.status == "UNAUTHENTICATED" and not call.events
    return passed(call.status) if fine else failed(f"{call.status}, {len(call.events)} events")


@_connected
async def cancel(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
    call = await client.generate_and_cancel("cancel", ask.chat(_long(target), max_output_tokens=400))
    end = call.events[-1] if call.events else None
    if end is None or end.kind != "cancelled":
        return failed(f"ends with {call.kinds[-1:]}, {call.status}")
    again = await client.cancel(end.response_id)
    return failed("a second Cancel still finds it") if again else passed(f"cancelled{{{end.fields['reason']}}}")


@_connected
async def cut_everywhere(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
    request = ask.chat(_content(target), max_output_tokens=PLAIN_TOKENS)
    request.sampling.seed = 7
    full = await client.generate("full", request)
    ids, problems = {full.events[0].response_id} if full.events else set(), []
    for count in range(1, len(full.events)):
        cut = await client.generate("cut", request, leave_after=count)
        after = await client.generate("after", request)
        found = {call.events[0].response_id for call in (cut, after) if call.events}
        if len(found) != 2 or found & ids or after.text() != full.text():
            problems.append(f"cut behind event {count - 1}: then {after.text()!r}, {after.status}, ids {sorted(found)}")
        ids |= found
    return judged(problems[:3], f"cut behind each of {len(full.events)} events")


@_connected
async def deadline(target: Target, client: GrpcClient, ask: Ask) -> Verdict:
    """A stream ends with a terminal shortly before the client's own deadline would cut it."""
    call = await client.generate("deadline", ask.chat(_long(target), max_output_tokens=400), timeout_s=1.0)
    if call.kinds[-1:] == ["completed"]:
        return na("the answer was faster than the deadline")
    fine = call.kinds[-1:] == ["failed"] and call.status == "OK"
    return (
        passed(f"failed{{{call.events[-1].fields['reason']}}}")
        if fine
        else failed(f"{call.status} behind {call.kinds[-1:]}: a terminal and OK were due")
    )


@_connected
async def models(target: Target, client: GrpcClient, _: Ask) -> Verdict:
    names = await client.models()
    fine = target.model in names and names == sorted(names)
    return passed(f"{len(names)} models") if fine else failed(f"models {names[:8]}")


@_connected
async def counts_tokens(_: Target, client: GrpcClient, ask: Ask) -> Verdict:
    request = ask.chat("one two three", max_output_tokens=2)
    counted, call = await client.count_tokens(request), await client.generate("count", request)
    used = call.events[-1].fields.get("num_prompt_tokens") if call.events else None
    return passed(f"{counted} tokens") if counted == used else failed(f"CountTokens {counted}, usage {used}")


RULES: tuple[Rule, ...] = (
    *map(_over_calls, CHECKS),
    Rule("grpc.same-text", "gRPC and HTTP give the same text", "one path inside, two ways out", same_as_http),
    Rule("grpc.refusals", "What cannot be served is a status of its kind and no event",
         "no identity was opened, so nothing has to end", refusals),
    Rule("grpc.no-key", "A key of nobody is UNAUTHENTICATED", "a stranger learns nothing else", no_key),
    Rule("grpc.cancel", "Cancel ends a response as cancelled, once", "it is how a client stops paying", cancel),
    Rule("grpc.cut-everywhere", "A call cancelled behind any event leaves nothing to the next one",
         "what a vanished client was owed must not reach anyone else", cut_everywhere, timeout_s=120),
    Rule("grpc.deadline", "A deadline ends a response with a terminal, not with a broken call",
         "the client must learn how it ended", deadline),
    Rule("grpc.models", "The list of models is sorted and has the model that answers",
         "clients choose from it", models),
    Rule("grpc.count-tokens", "CountTokens says what the usage will say",
         "people plan by it", counts_tokens),
)  # fmt: skip
