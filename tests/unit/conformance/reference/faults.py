"""The faults: each a small, real mistake. A transform changes a stream, a behaviour is asked for."""

import copy
from collections.abc import Callable
from typing import Any

from tests.unit.conformance.reference.wire import DONE, ERROR, Answer, Wire, encoded

Wires = list[Wire]
Transform = Callable[[str, Answer, Wires], Wires]


def _chunked(change: Callable[[Answer, Wires], Wires], *surfaces: str) -> Transform:
    """Only on these surfaces (default: chat); the change gets its own copies."""

    def transform(surface: str, answer: Answer, wires: Wires) -> Wires:
        return change(answer, copy.deepcopy(wires)) if surface in (surfaces or ("chat",)) else wires

    return transform


def _objects(wires: Wires) -> list[dict[str, Any]]:
    return [content for _, _, content in wires if isinstance(content, dict)]


def _choice(content: Any) -> dict[str, Any]:
    """The choice of a chunk, or an empty object."""
    choices = content.get("choices") if isinstance(content, dict) else None
    return choices[0] if choices else {}


def text_of(content: Any) -> str:
    """The text of a chat chunk, or nothing."""
    text = _choice(content).get("delta", {}).get("content")
    return text if isinstance(text, str) else ""


def _text_at(wires: Wires) -> list[int]:
    return [at for at, (_, _, content) in enumerate(wires) if text_of(content)]


def _finish_at(wires: Wires) -> list[int]:
    return [at for at, (_, _, content) in enumerate(wires) if _choice(content).get("finish_reason")]


def _without(wires: Wires, wrong: Callable[[Any], bool]) -> Wires:
    return [one for one in wires if not wrong(one[2])]


def _is_error(content: Any) -> bool:
    return isinstance(content, dict) and "error" in content


def _finish_with_text(_: Answer, wires: Wires) -> Wires:
    finishes, texts = _finish_at(wires), _text_at(wires)
    if len(finishes) == 1 and texts and texts[-1] == finishes[0] - 1:
        _choice(wires[texts[-1]][2])["finish_reason"] = _choice(wires[finishes[0]][2])["finish_reason"]
        del wires[finishes[0]]
    return wires


def _repeated_delta(_: Answer, wires: Wires) -> Wires:
    """As after a reconnection: the tenth delta of a longer stream is sent again."""
    texts = _text_at(wires)
    if 10 <= len(texts) < 20:
        wires.insert(texts[9], copy.deepcopy(wires[texts[9]]))
    return wires


def _two_ids(_: Answer, wires: Wires) -> Wires:
    for content in _objects(wires)[2:]:
        if "id" in content:
            content["id"] += "-b"
    return wires


def _empty_delta(_: Answer, wires: Wires) -> Wires:
    texts = _text_at(wires)
    if texts:
        empty = copy.deepcopy(wires[texts[0]])
        _choice(empty[2]).update(delta={"content": ""}, logprobs=None)
        wires.insert(texts[0], empty)
    return wires


def _usage_of_one_choice(answer: Answer, wires: Wires) -> Wires:
    for content in _objects(wires):
        if "usage" in content and len(answer.texts) > 1:
            usage = content["usage"]
            usage["completion_tokens"] = answer.texts[0].num_tokens
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return wires


def _cumulative_usage(answer: Answer, wires: Wires) -> Wires:
    """Running totals summed up again; a single token hides it."""
    for content in _objects(wires):
        if "usage" in content and answer.num_output > 90:
            usage, num = content["usage"], answer.num_output
            usage["completion_tokens"] = num * (num + 1) // 2
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return wires


def _wrong_total(_: Answer, wires: Wires) -> Wires:
    for content in _objects(wires):
        if "usage" in content:
            content["usage"]["total_tokens"] += 1
    return wires


def _usage_unasked(answer: Answer, wires: Wires) -> Wires:
    if not answer.include_usage and not answer.failed:
        base = {key: value for key, value in _objects(wires)[0].items() if key != "choices"}
        wires.insert(len(wires) - 1, (0.0, "", {**base, "choices": [], "usage": answer.usage()}))
    return wires


def _usage_beside_finish(answer: Answer, wires: Wires) -> Wires:
    usage = [at for at, one in enumerate(wires) if isinstance(one[2], dict) and one[2].get("choices") == []]
    if usage and len(answer.texts) == 1 and len(answer.texts[0].deltas) < 12:
        wires[_finish_at(wires)[-1]][2]["usage"] = wires[usage[0]][2]["usage"]
        del wires[usage[0]]
    return wires


def _behind_finish(_: Answer, wires: Wires) -> Wires:
    """The last text comes after the finish reason."""
    finishes, texts = _finish_at(wires), _text_at(wires)
    if len(finishes) == 1 and texts:
        wires.insert(finishes[0], wires.pop(texts[-1]))
    return wires


def _swap(first: str, second: str) -> Callable[[Answer, Wires], Wires]:
    """Two typed events change places."""

    def change(_: Answer, wires: Wires) -> Wires:
        names = [name for _, name, _ in wires]
        if first in names and second in names:
            one, other = names.index(first), names.index(second)
            wires[one], wires[other] = wires[other], wires[one]
        return wires

    return change


def _late_sequence(_: Answer, wires: Wires) -> Wires:
    for content in _objects(wires)[3:]:
        content["sequence_number"] += 1
    return wires


def _error_first(_: Answer, wires: Wires) -> Wires:
    """Renumbered, so that only the event itself is too much."""
    if wires[-1][1] == "response.failed":
        number = wires[-1][2]["sequence_number"]
        event = {"type": "error", "sequence_number": number, "error": dict(ERROR)}
        wires.insert(-1, (0.0, "error", event))
        wires[-1][2]["sequence_number"] = number + 1
    return wires


def _second_terminal(_: Answer, wires: Wires) -> Wires:
    again = copy.deepcopy(wires[-1])
    again[2]["sequence_number"] += 1
    return [*wires, again]


def _done_text_differs(_: Answer, wires: Wires) -> Wires:
    for content in _objects(wires):
        if content["type"] == "response.output_text.done":
            content["text"] += "."
    return wires


def _stop_behind_error(_: Answer, wires: Wires) -> Wires:
    return [*wires, (0.0, "message_stop", {"type": "message_stop"})] if wires[-1][1] == "error" else wires


def _complete_after_failure(answer: Answer, wires: Wires) -> Wires:
    """The engine's fault is swallowed: the answer looks whole."""
    if not answer.failed:
        return wires
    base = {key: value for key, value in _objects(wires)[0].items() if key != "choices"}
    finish = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    return [*wires[:-1], (0.0, "", {**base, "choices": [finish]}), (0.0, "", DONE)]


def _empty_after_failure(answer: Answer, wires: Wires) -> Wires:
    return wires if _text_at(wires) else _complete_after_failure(answer, wires)


def _complete_after_output(answer: Answer, wires: Wires) -> Wires:
    return _complete_after_failure(answer, wires) if _text_at(wires) else wires


def _broken_utf8(answer: Answer, wires: Wires) -> Wires:
    for at in _text_at(wires):
        if text_of(wires[at][2]) == "Head" and not answer.logprobs:
            wires[at] = (0.0, "", encoded("", wires[at][2]).replace(b"Head", b"Hea\xf0\x9f"))
    return wires


def _skewed_logprobs(_: Answer, wires: Wires) -> Wires:
    for at in _text_at(wires)[:1]:
        logprobs = _choice(wires[at][2])["logprobs"]
        if logprobs:
            logprobs["content"] = []
    return wires


def _positive_logprob(_: Answer, wires: Wires) -> Wires:
    for at in _text_at(wires):
        for entry in (_choice(wires[at][2])["logprobs"] or {"content": []})["content"]:
            entry["logprob"] = 0.5
    return wires


def _constant(name: str, value: Any, start: int) -> Callable[[Answer, Wires], Wires]:
    def change(_: Answer, wires: Wires) -> Wires:
        for content in _objects(wires)[start:]:
            if name in content:
                content[name] = value
        return wires

    return change


def _twice(_: Answer, wires: Wires) -> Wires:
    finishes = _finish_at(wires)
    return [*wires[: finishes[0]], copy.deepcopy(wires[finishes[0]]), *wires[finishes[0] :]] if finishes else wires


TRANSFORMS: dict[str, Transform] = {
    "no_terminal": _chunked(lambda _, wires: _without(wires, lambda one: one == DONE), "chat", "completions"),
    "no_error": _chunked(lambda _, wires: _without(wires, _is_error), "completions"),
    "double_done": _chunked(lambda _, wires: [*wires, wires[-1]] if wires[-1][2] == DONE else wires, "completions"),
    "done_after_error": _chunked(
        lambda answer, wires: [*wires, (0.0, "", DONE)] if answer.failed else wires, "completions"
    ),
    "two_errors": _chunked(lambda _, wires: [*wires, wires[-1]] if _is_error(wires[-1][2]) else wires),
    "bare_error": _chunked(
        lambda _, wires: [*wires[:-1], (0.0, "", {"error": {"message": "no"}})] if _is_error(wires[-1][2]) else wires
    ),
    "no_role": _chunked(lambda _, wires: _without(wires, lambda one: "role" in _choice(one).get("delta", {}))),
    "finish_with_text": _chunked(_finish_with_text),
    "no_finish": _chunked(lambda _, wires: _without(wires, lambda one: bool(_choice(one).get("finish_reason"))),
                          "completions"),
    "finish_twice": _chunked(_twice, "completions"),
    "behind_finish": _chunked(_behind_finish),
    "one_choice_missing": _chunked(lambda _, wires: _without(wires, lambda one: _choice(one).get("index") == 1)),
    "empty_deltas": _chunked(_empty_delta),
    "two_ids": _chunked(_two_ids),
    "model_changes": _chunked(_constant("model", "other", 2)),
    "wrong_object": _chunked(_constant("object", "chat.chunk", 0)),
    "repeated_delta": _chunked(_repeated_delta),
    "usage_of_one_choice": _chunked(_usage_of_one_choice),
    "cumulative_usage": _chunked(_cumulative_usage),
    "wrong_total": _chunked(_wrong_total),
    "usage_unasked": _chunked(_usage_unasked, "completions"),
    "usage_beside_finish": _chunked(_usage_beside_finish),
    "skewed_logprobs": _chunked(_skewed_logprobs),
    "positive_logprob": _chunked(_positive_logprob),
    "complete_after_failure": _chunked(_complete_after_output),
    "empty_after_failure": _chunked(_empty_after_failure),
    "broken_utf8": _chunked(_broken_utf8),
    "named_events": _chunked(lambda _, wires: [(one[0], "chunk", one[2]) for one in wires], "chat", "completions"),
    "junk_event": _chunked(lambda _, wires: [*wires[:1], (0.0, "", "ping"), *wires[1:]], "completions"),
    "responses_sequence": _chunked(_late_sequence, "responses"),
    "responses_second_terminal": _chunked(_second_terminal, "responses"),
    "responses_error_first": _chunked(_error_first, "responses"),
    "responses_done_text": _chunked(_done_text_differs, "responses"),
    "responses_unnamed": _chunked(lambda _, wires: [(one[0], "", one[2]) for one in wires], "responses"),
    "messages_stop_behind_error": _chunked(_stop_behind_error, "messages"),
    "messages_block_unopened": _chunked(_swap("content_block_start", "content_block_delta"), "messages"),
    "messages_no_reason": _chunked(lambda _, wires: _without(wires, lambda one: one["type"] == "message_delta"),
                                   "messages"),
}  # fmt: skip

# Asked for by name in the server or in the writing of text.
BEHAVIOURS = frozenset({
    "split_characters", "held_text_lost", "stop_leaks", "stop_first_choice_only", "no_request_id", "any_request_id",
    "no_key_needed", "any_key", "any_model", "nameless", "takes_bad_n", "takes_bad_seed", "short_ids",
    "content_type", "cacheable", "bare_list", "plain_errors", "whole_text_differs", "held_back", "leftovers",
    "counts_delivered", "limit_off_by_one", "length_at_the_end", "unseeded", "null_refused", "unknown_refused",
})  # fmt: skip
