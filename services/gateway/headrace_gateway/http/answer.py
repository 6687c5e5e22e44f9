"""A whole answer, gathered from the events of one response. Knows no format."""

from typing import Any

from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent, ToolCallDelta


class Call:
    """One function call; `arguments` are JSON text, cut if the choice was."""

    def __init__(self, first: ToolCallDelta) -> None:
        self.call_id, self.name, self.arguments = first.call_id, first.name, first.arguments


class Choice:
    """One choice. `reason` is its finish reason, `stop` the stop string that ended it, if one did."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[Call] = []
        self.logprobs: list[Any] = []
        self.reason = self.stop = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)


class Answer:
    """`add` everything after `created`; `terminal` is set by the last event."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [Choice() for _ in range(num_choices)]
        self.num_reasoning_tokens = 0
        self.terminal: outputs.Terminal | None = None

    def add(self, event: ParsedEvent) -> None:
        match event:
            case outputs.Delta():
                choice = self.choices[event.choice]
                choice.texts.append(event.text)
                choice.logprobs.extend(event.logprobs)
            case ParsedDelta():
                self._add_parsed(event)
            case outputs.ChoiceFinished():
                choice = self.choices[event.choice]
                choice.reason, choice.stop = event.reason, event.stop
            case outputs.Terminal():
                self.terminal = event

    @property
    def usage(self) -> Usage:
        assert self.terminal is not None, "usage is known at the end"
        return self.terminal.usage

    def _add_parsed(self, event: ParsedDelta) -> None:
        choice = self.choices[event.choice]
        if event.tool_call is not None and event.tool_call.name:
            choice.calls.append(Call(event.tool_call))
        elif event.tool_call is not None:
            choice.calls[event.tool_call.index].arguments += event.tool_call.arguments
        elif event.reasoning:
            choice.thoughts.append(event.reasoning)
            self.num_reasoning_tokens += event.num_tokens
        else:
            choice.texts.append(event.text)
            choice.logprobs.extend(event.logprobs)
