"""Keeps what people write from becoming control tokens, whatever a chat template does to it.

Before the template sees a text, everything in it that looks like a control marker is replaced by an unguessable
placeholder; so is a beginning of a marker at its end and an end of one at its beginning, which could become whole
beside another text. Afterwards placeholders are put back as plain text, and only markers that the template itself wrote
are markers. Everything else of a text stays as it is, for templates that look into it (`</think>`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace_gateway.text.tokenizer import Span

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class Disguise:
    """Placeholders for the markers of one tokenizer. Immutable and thread-safe."""

    def __init__(self, markers: Sequence[str]) -> None:
        whole = sorted(markers, key=len, reverse=True)
        self._beginnings = {marker[:end] for marker in whole for end in range(1, len(marker))}
        self._ends = {marker[start:] for marker in whole for start in range(1, len(marker))}
        self._longest = max(map(len, whole), default=0)
        self._originals = [*whole, *sorted((self._beginnings | self._ends) - set(whole))]
        # Digits survive whatever a template does to text: case, trimming, JSON.
        nonce = f"{secrets.randbelow(10**30):030d}"
        self._placeholders = {text: f"{nonce}{number:06d}" for number, text in enumerate(self._originals)}
        any_marker = "|".join(map(re.escape, whole)) or r"(?!)"
        self._marker = re.compile(any_marker)
        self._placeholder = re.compile(f"{nonce}([0-9]{{6}})")
        self._rendered = re.compile(f"({any_marker})|{self._placeholder.pattern}")

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with a known role keeps it as it is: templates compare it."""
        disguised: dict[str, Any] = self.value(message)
        if message.get("role") in ROLES:
            disguised["role"] = message["role"]
        return disguised

    def value(self, value: Any) -> Any:
        """The same data with every text disguised; a key that is an identifier names a field and stays."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                key if not isinstance(key, str) or key.isidentifier() else self.text(key): self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def text(self, text: str) -> str:
        """Spaces around a text may be trimmed, so its edges are those of what is left then."""
        core = text.strip()
        if not core or not self._longest:
            return text
        start = text.index(core)
        left, right = text[:start], text[start + len(core) :]
        sizes = range(min(self._longest - 1, len(core)), 0, -1)
        head = next((core[:size] for size in sizes if core[:size] in self._ends), "")
        core = core[len(head) :]
        tail = next((core[-size:] for size in sizes if core[-size:] in self._beginnings), "")
        core = self._marker.sub(lambda found: self._placeholders[found.group()], core[: len(core) - len(tail)])
        return "".join((left, self._placeholders.get(head, ""), core, self._placeholders.get(tail, ""), right))

    def restore(self, text: str) -> str:
        """Placeholders put back."""
        return self._placeholder.sub(lambda found: self._originals[int(found.group(1))], text)

    def spans(self, rendered: str) -> Iterator[Span]:
        """Markers that the template wrote, and the texts between them as people wrote them."""
        plain: list[str] = []
        position = 0
        for found in self._rendered.finditer(rendered):
            plain.append(rendered[position : found.start()])
            position = found.end()
            if found.group(1) is None:
                plain.append(self._originals[int(found.group(2))])
                continue
            yield from _text_span(plain)
            plain = []
            yield Span(found.group(1), True)
        plain.append(rendered[position:])
        yield from _text_span(plain)


def _text_span(plain: Sequence[str]) -> Iterator[Span]:
    text = "".join(plain)
    if text:
        yield Span(text, False)
