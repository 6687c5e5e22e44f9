"""Events with their text split into channels: numbered without gaps, tokens and log-probabilities where they belong."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent, ParsedStream
from headrace_gateway.parsing.style import Style

TOOLS = frozenset({"f"})
BOTH = Style("hermes", thinks=True)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


class FakeSession:
    """Plays events, the first alone, the others by twos; one choice."""

    def __init__(self, events: list[Any], style: Style | None) -> None:
        self._events = events
        make = (lambda: None) if style is None else (lambda: style.parser(TOOLS, inside_thought=False))
        self.prepared = SimpleNamespace(parser=make, bounds=SimpleNamespace(n=1))

        self._at = 0

    def begin(self) -> None: ...
    async def ready(self) -> None: ...

    def take(self) -> list[Any]:
        start, self._at = self._at, self._at + (2 if self._at else 1)
        return self._events[start : self._at]

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._events)


def events_of(*texts: str, reason: str = "stop", logprobs: bool = False) -> list[Any]:
    events: list[Any] = [outputs.Created(0, 1)]
    for number, text in enumerate(texts, start=1):
        events.append(outputs.Delta(number, 0, text, 1, (text,) if logprobs else ()))
    events.append(outputs.ChoiceFinished(len(events), 0, reason, len(texts)))
    kind = "incomplete" if reason == "length" else "completed"
    events.append(outputs.Terminal(len(events), kind, reason, "", Usage(1, 0, len(texts))))
    return events


async def run(style: Style | None, events: list[Any]) -> tuple[list[ParsedEvent], ParsedStream]:
    session: Any = FakeSession(events, style)
    stream = ParsedStream(session)
    return [event async for batch in stream.batches() for event in batch], stream


def channel(events: list[ParsedEvent], name: str) -> str:
    deltas = [event for event in events if isinstance(event, outputs.Delta | ParsedDelta)]
    return "".join(getattr(event, name, "") for event in deltas)


async def test_without_a_parser_events_pass_as_they_are() -> None:
    events = events_of("<think>", "x")
    assert (await run(None, events))[0] == events


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "hm", CALL, "a", " ", "<", "é"]), max_size=6), st.integers(1, 5)
)
async def test_numbers_have_no_gaps_and_no_delta_is_empty(texts: list[str], size: int) -> None:
    whole = "".join(texts)
    cut = [whole[at : at + size] for at in range(0, len(whole), size)]
    told, _ = await run(BOTH, events_of(*cut))
    assert [event.sequence_number for event in told] == list(range(len(told)))
    for event in told:
        if isinstance(event, ParsedDelta):
            assert bool(event.text) + bool(event.reasoning) + (event.tool_call is not None) == 1
        if isinstance(event, outputs.Delta):
            assert event.text
    at_once, _ = await run(BOTH, events_of(*([whole] if whole else [])))
    for name in ("text", "reasoning"):
        assert channel(told, name) == channel(at_once, name)
    reasons = [[event.reason for event in one if isinstance(event, outputs.ChoiceFinished)] for one in (told, at_once)]
    assert reasons[0] == reasons[1]


async def test_tokens_are_counted_once_and_reasoning_apart() -> None:
    told, stream = await run(BOTH, events_of("<think>", "h", "m", "</think>", "a", "b"))
    counted = sum(event.num_tokens for event in told if isinstance(event, outputs.Delta | ParsedDelta))
    assert counted == 6
    assert stream.num_reasoning_tokens == 3  # the opening tag goes with the thought, the closing one with the answer
    assert channel(told, "reasoning") == "hm" and channel(told, "text") == "ab"


async def test_a_call_ends_the_choice_with_calls_unless_it_was_cut() -> None:
    whole, _ = await run(BOTH, events_of(*CALL))
    assert [event.reason for event in whole if isinstance(event, outputs.ChoiceFinished)] == ["tool_calls"]
    for reason in ("stop", "length"):
        cut, _ = await run(BOTH, events_of(*CALL[:45], reason=reason))
        assert [event.reason for event in cut if isinstance(event, outputs.ChoiceFinished)] == [reason]


async def test_logprobs_go_with_answer_text_only() -> None:
    texts = ["<think>", "h", "</think>", "a", "<", "b", *CALL]
    told, _ = await run(BOTH, events_of(*texts, logprobs=True))
    deltas = [event for event in told if isinstance(event, outputs.Delta | ParsedDelta) and event.logprobs]
    assert [(event.text, event.logprobs) for event in deltas] == [("a", ("a",)), ("<b", ("<", "b"))]
