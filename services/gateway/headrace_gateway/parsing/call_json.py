"""A function call written as a JSON object, read as it comes: its name first, then its arguments piece by piece.

`{"name": "f", "arguments": {…}}`; Llama writes `parameters`. Any other key is read and ignored. Arguments that come
before the name wait for it. Knows no tags around the object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, auto

_ARGUMENTS = frozenset({"arguments", "parameters"})
_FIRST_KEYS = _ARGUMENTS | {"name", "type", "function", "id"}
_SPACE = " \t\r\n"


class CallState(Enum):
    OPEN = auto()
    DONE = auto()
    BROKEN = auto()


class CallJson:
    """One object; `name` is None until it is known."""

    def __init__(self) -> None:
        self.state = CallState.OPEN
        self.name: str | None = None
        self._read: list[str] = []
        self._expect: Callable[[str], None] = self._start
        self._key = self._first_key = ""
        self._value: list[str] = []
        self._kind = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self._early: str | None = None
        self._arguments: list[str] = []
        self._num_given = 0
        self._has_arguments = False

    def feed(self, text: str) -> int:
        """Reads until the object ends or breaks; returns how many characters it took."""
        taken = len(text)
        for place, character in enumerate(text):
            self._expect(character)
            if self.state is not CallState.OPEN:
                taken = place + 1
                break
        self._read.append(text[:taken])
        return taken

    @property
    def has_begun(self) -> bool:
        return bool(self._read)

    @property
    def raw(self) -> str:
        """Everything that was read."""
        return "".join(self._read)

    def take_arguments(self) -> str:
        """The argument text that is new since the last call; nothing before the name is known."""
        if self.name is None:
            return ""
        fresh = "".join(self._arguments[self._num_given :])
        self._num_given = len(self._arguments)
        return fresh

    @property
    def keys_fit(self) -> bool:
        """Whether it may still be a call: its first key is one that calls have."""
        return not self._first_key or self._first_key in _FIRST_KEYS

    # ---- one method per place in the object; each takes one character ------------------------------------------------

    def _start(self, character: str) -> None:
        if character == "{":
            self._expect = self._before_key
        elif character not in _SPACE:
            self.state = CallState.BROKEN

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._begin_value(character)
            self._expect = self._in_key
        elif character == "}" and not self._key:
            self._end()
        elif character not in _SPACE:
            self.state = CallState.BROKEN

    def _in_key(self, character: str) -> None:
        self._value.append(character)
        if self._string_ended(character):
            key = self._loads("".join(self._value))
            self._key = key if isinstance(key, str) else ""
            self._first_key = self._first_key or self._key
            self._expect = self._colon

    def _colon(self, character: str) -> None:
        if character == ":":
            self._expect = self._before_value
        elif character not in _SPACE:
            self.state = CallState.BROKEN

    def _before_value(self, character: str) -> None:
        if character in _SPACE:
            return
        if character in ",}]:":
            self.state = CallState.BROKEN
            return
        self._begin_value(character)
        self._expect = self._in_value
        if self._streams:
            self._arguments.append(character)

    def _in_value(self, character: str) -> None:
        if self._kind == "scalar" and character in ",} \t\r\n":
            self._value_ended()
            self._after_value(character)
            return
        self._value.append(character)
        if self._streams:
            self._arguments.append(character)
        if self._kind == "string":
            ended = self._string_ended(character)
        else:
            ended = self._kind == "container" and self._container_ended(character)
        if ended:
            self._value_ended()

    def _after_value(self, character: str) -> None:
        if character == ",":
            self._expect = self._before_key
        elif character == "}":
            self._end()
        elif character not in _SPACE:
            self.state = CallState.BROKEN

    # ---- values ------------------------------------------------------------------------------------------------------

    @property
    def _streams(self) -> bool:
        """An object of arguments behind the name goes out as it comes."""
        return self._key in _ARGUMENTS and self._value[0] == "{" and self.name is not None

    def _begin_value(self, character: str) -> None:
        self._value = [character]
        self._kind = "string" if character == '"' else "container" if character in "{[" else "scalar"
        self._depth, self._in_string, self._escaped = int(self._kind == "container"), False, False

    def _string_ended(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
            return False
        self._escaped = character == "\\"
        return character == '"'

    def _container_ended(self, character: str) -> bool:
        if self._in_string:
            self._in_string = not self._string_ended(character)
        elif character == '"':
            self._in_string, self._escaped = True, False
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self._depth == 0

    def _value_ended(self) -> None:
        self._expect = self._after_value
        text = "".join(self._value)
        value = self._loads(text)
        if self.state is CallState.BROKEN:
            return
        if self._key == "name":
            if not isinstance(value, str) or not value or self.name is not None:
                self.state = CallState.BROKEN
                return
            self.name = value
            if self._early is not None:
                self._arguments.append(self._early)
        elif self._key in _ARGUMENTS:
            self._take_value(text, value)

    def _take_value(self, text: str, value: object) -> None:
        """Some models write the arguments as a string that holds JSON, or leave them null."""
        if self._has_arguments or not isinstance(value, dict | str | None):
            self.state = CallState.BROKEN
            return
        self._has_arguments = True
        if isinstance(value, str):
            text = value if isinstance(self._loads(value), dict) else "{}"
        elif value is None:
            text = "{}"
        elif self.name is not None:
            return  # it went out as it came
        if self.name is None:
            self._early = text
        else:
            self._arguments.append(text)

    def _loads(self, text: str) -> object:
        try:
            return json.loads(text, strict=False)
        except (ValueError, RecursionError):
            self.state = CallState.BROKEN
            return None

    def _end(self) -> None:
        if self.name is None:
            self.state = CallState.BROKEN
            return
        if not self._has_arguments:
            self._arguments.append("{}")
        self.state = CallState.DONE
