"""The order of a chat or completions stream: role, deltas, finish reasons, usage, and one end."""

from headrace_conformance.checks.check import CHAT, CHUNKED, Check
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.recording import Recording
from headrace_conformance.verdict import Verdict, failed, judged, na, passed


def role_once(recording: Recording) -> Verdict:
    stream, problems = ChunkStream(recording), []
    for choice in stream.choices():
        pieces = stream.of(choice)
        roles = [piece for piece in pieces if piece.role]
        if not pieces[0].role:
            problems.append(f"choice {choice} begins without a role, with {pieces[0].delta}")
        elif pieces[0].delta["role"] != "assistant" or pieces[0].text:
            problems.append(f"choice {choice} begins with {pieces[0].delta}")
        elif len(roles) > 1:
            problems.append(f"choice {choice} has {len(roles)} role deltas")
    return judged(problems, "each choice begins with one role delta without text") if stream.pieces else na("no choice")


def nothing_behind_the_end(recording: Recording) -> Verdict:
    stream, problems = ChunkStream(recording), []
    for choice in stream.choices():
        ended_at = next((piece.at for piece in stream.of(choice) if piece.finish), None)
        late = [p.at for p in stream.of(choice) if ended_at is not None and p.at > ended_at and not p.finish]
        if late:
            problems.append(f"choice {choice} ended at event {ended_at} and goes on at {late}")
    totals = [at for at in stream.usages() if not stream.chunks[at].get("choices")]
    if totals and stream.pieces and stream.pieces[-1].at > totals[0]:
        problems.append(f"usage at event {totals[0]}, then a choice at event {stream.pieces[-1].at}")
    return judged(problems, "nothing of a choice follows its finish reason, no choice follows the usage")


def finish_once(recording: Recording) -> Verdict:
    stream, problems = ChunkStream(recording), []
    whole = not stream.failed and ("done" in stream.kinds or not recording.framed)
    for choice in stream.choices():
        reasons = [piece.finish for piece in stream.of(choice) if piece.finish]
        if len(reasons) > 1 or (not reasons and whole):
            problems.append(f"choice {choice} has finish reasons {reasons}")
    return judged(problems, "one finish reason per choice") if stream.pieces else na("no choice")


def finish_alone(recording: Recording) -> Verdict:
    pieces = [piece for piece in ChunkStream(recording).pieces if piece.finish]
    together = [f"event {p.at}: {p.finish!r} beside {p.delta}" for p in pieces if p.carries_output]
    return judged(together, "each finish reason has an empty delta") if pieces else na("no finish reason")


def no_empty_delta(recording: Recording) -> Verdict:
    empty = [p.at for p in ChunkStream(recording).pieces if not (p.finish or p.role or p.carries_output)]
    return judged([f"event {at} has an empty delta" for at in empty[:5]], "every delta carries something")


def text_is_text(recording: Recording) -> Verdict:
    """Null stands only in a role delta: the first of a refusal or of a tool call has no text yet."""
    problems = [
        f"event {p.at}: content is {p.delta['content']!r}"
        for p in ChunkStream(recording).pieces
        if not p.role and "content" in p.delta and not isinstance(p.delta["content"], str)
    ]
    return judged(problems[:5], "content is a string or absent")


def every_choice(recording: Recording) -> Verdict:
    stream = ChunkStream(recording)
    if stream.failed or not stream.pieces:
        return na("the stream failed" if stream.failed else "no choice")
    found, asked = sorted(stream.choices()), list(range(recording.num_choices))
    return passed(f"choices {found}") if found == asked else failed(f"choices {found}, asked for {asked}")


def ends(recording: Recording) -> Verdict:
    if not recording.framed:
        return na("the end was not recorded")
    kinds = ChunkStream(recording).kinds
    if kinds and kinds[-1] in ("done", "error"):
        return passed(f"ends with {kinds[-1]}")
    return failed(f"the last of {len(kinds)} events is {recording.events[-1].data[:120]!r}" if kinds else "no event")


def done_once(recording: Recording) -> Verdict:
    kinds = ChunkStream(recording).kinds
    if "done" not in kinds:
        return na("no [DONE]")
    if kinds.count("done") > 1:
        return failed(f"[DONE] {kinds.count('done')} times")
    behind = kinds[kinds.index("done") + 1 :]
    return failed(f"{behind} behind [DONE]") if behind else passed("one [DONE], and it is the last event")


def no_done_after_error(recording: Recording) -> Verdict:
    kinds = ChunkStream(recording).kinds
    if "error" not in kinds:
        return na("the stream did not fail")
    return failed("[DONE] behind an error") if "done" in kinds[kinds.index("error") :] else passed("no [DONE]")


def one_error(recording: Recording) -> Verdict:
    kinds = ChunkStream(recording).kinds
    if "error" not in kinds:
        return na("the stream did not fail")
    behind = [kind for kind in kinds[kinds.index("error") + 1 :] if kind != "done"]
    return failed(f"behind the error: {behind}") if behind else passed("one error, and no chunk behind it")


def error_shape(recording: Recording) -> Verdict:
    errors = ChunkStream(recording).errors
    if not errors:
        return na("the stream did not fail")
    problems = [f"error.{name} is {one.get(name)!r}" for one in errors for name in ("message", "type", "code")
                if not (isinstance(one.get(name), str) and one[name])]  # fmt: skip
    return judged(problems, f"error {errors[0].get('code')!r}: {errors[0].get('message')!r}")


CHECKS = (
    Check("stream.role", "Each choice of a chat begins with one role delta without text",
          "clients open a message at the role; text in it is lost, a second one opens a second message",
          CHAT, role_once),
    Check("stream.order", "Nothing of a choice follows its finish reason, and no choice follows the usage",
          "a client that stopped reading at the finish reason would lose it", CHUNKED, nothing_behind_the_end),
    Check("stream.finish-once", "Each choice has one finish reason in a stream that ends with [DONE], else at most one",
          "without it truncation looks like completion; twice ends a message twice", CHUNKED, finish_once),
    Check("stream.finish-alone", "A finish reason travels in its own chunk with an empty delta",
          "clients that ignore text on the finishing chunk lose the last words", CHUNKED, finish_alone),
    Check("stream.no-empty-delta", "No delta is empty, but for the role and the finish reason",
          "empty deltas defeat time-to-first-token and wake the client for nothing", CHUNKED, no_empty_delta),
    Check("stream.text-type", "Text is a string or absent, never null behind the role delta",
          "clients add the pieces up, and null is no piece", CHUNKED, text_is_text),
    Check("stream.choices", "A stream has exactly the choices that were asked for",
          "a choice that is missing or made up breaks whoever waits for n answers", CHUNKED, every_choice),
    Check("stream.ends", "A stream ends with [DONE] or with an error, never silently",
          "a silent end cannot be told from a lost connection", CHUNKED, ends),
    Check("stream.done-once", "[DONE] comes once and nothing comes behind it",
          "clients close at the first one", CHUNKED, done_once),
    Check("stream.no-done-after-error", "No [DONE] follows an error",
          "[DONE] says that the answer is whole", CHUNKED, no_done_after_error),
    Check("stream.one-error", "A failed stream has one error and no chunk behind it",
          "a response ends exactly once", CHUNKED, one_error),
    Check("stream.error-shape", "The error of a stream has message, type and code",
          "clients raise from these three", CHUNKED, error_shape),
)  # fmt: skip
