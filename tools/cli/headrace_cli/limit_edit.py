"""One limit of a tenant set or removed in the text of a fleet file, which keeps its comments and its layout. Pure.

Places come from the YAML parser; the result is parsed again and has to mean what was wanted. A file that is written in
a way that this does not understand (an anchor, a tag, tabs of its own making) gives None.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Limit:
    """Which limit of which tenant, and its capacity; None: there is to be none."""

    tenant: str
    name: str
    scope: str
    subject: str
    capacity: float | int | None

    def is_same(self, one: Mapping[str, Any]) -> bool:
        """Whether an entry of the file is about the same."""
        found = {"scope": "tenant", "subject": "", **one}
        return (found.get("name"), found["scope"], found["subject"]) == (self.name, self.scope, self.subject)

    def entry(self) -> dict[str, Any]:
        """As the file has it."""
        about = {"scope": self.scope if self.scope != "tenant" else "", "subject": self.subject}
        return {"name": self.name, **{key: value for key, value in about.items() if value}, "capacity": self.capacity}


def changed_content(content: Mapping[str, Any], limit: Limit) -> dict[str, Any]:
    """The parsed file with the limit as wanted, in its place or last; the tenant is there."""
    tenants = dict(content["tenants"])
    tenant = dict(tenants[limit.tenant] or {})
    limits = list(tenant.get("limits") or [])
    places = [at for at, one in enumerate(limits) if limit.is_same(one)]
    if limit.capacity is None and not places:
        return dict(content)
    if limit.capacity is None:
        limits = [one for one in limits if not limit.is_same(one)]
    elif places:
        limits[places[0]] = {**limits[places[0]], "capacity": limit.capacity}
    else:
        limits.append(limit.entry())
    return {**content, "tenants": {**tenants, limit.tenant: {**tenant, "limits": limits}}}


def changed_text(text: str, limit: Limit) -> str | None:
    """The file with that one change; None if it cannot be made in place."""
    wanted = changed_content(yaml.safe_load(text), limit)
    tenant = _child(_child(yaml.compose(text, Loader=yaml.SafeLoader), "tenants"), limit.tenant)
    edited = _edited(text, tenant, limit) if tenant is not None else None
    try:
        return edited if edited is not None and yaml.safe_load(edited) == wanted else None
    except yaml.YAMLError:
        return None


def _edited(text: str, tenant: Any, limit: Limit) -> str | None:
    limits = _child(tenant, "limits")
    entry = yaml.safe_dump(limit.entry(), default_flow_style=True, sort_keys=False, width=1000).strip()
    if limits is None:
        return text if limit.capacity is None else _with_first(text, tenant, f"limits: [{entry}]")
    if not isinstance(limits, yaml.SequenceNode):
        return None
    same = [at for at, one in enumerate(limits.value) if limit.is_same(_plain(one))]
    if limit.capacity is None:
        return _without(text, limits, same[0]) if len(same) == 1 else text if not same else None
    if not same:
        return _with_last(text, limits, entry)
    capacity = _child(limits.value[same[0]], "capacity")
    if capacity is None:
        return None
    return _replaced(text, capacity.start_mark.index, capacity.end_mark.index, str(limit.capacity))


def _with_first(text: str, mapping: Any, pair: str) -> str:
    """A pair before all others of a mapping, or as the first of an empty one."""
    start = mapping.start_mark.index
    if not isinstance(mapping, yaml.MappingNode):  # nothing yet: null, or no word at all
        return _replaced(text, start, mapping.end_mark.index, f" {{{pair}}}" if mapping.value == "" else f"{{{pair}}}")
    if mapping.flow_style:
        return _replaced(text, start + 1, start + 1, f"{pair}, " if mapping.value else pair)
    return _replaced(text, start, start, f"{pair}\n{' ' * mapping.start_mark.column}")


def _with_last(text: str, sequence: yaml.SequenceNode, entry: str) -> str:
    if sequence.flow_style:
        end = _end(sequence.value[-1]) if sequence.value else sequence.start_mark.index + 1
        return _replaced(text, end, end, f", {entry}" if sequence.value else entry)
    end = _line_end(text, _end(sequence.value[-1]))
    return _replaced(text, end, end, f"\n{' ' * sequence.start_mark.column}- {entry}")


def _without(text: str, sequence: yaml.SequenceNode, at: int) -> str:
    items = sequence.value
    if len(items) == 1:
        end = sequence.end_mark.index if sequence.flow_style else _end(items[0])
        return _replaced(text, sequence.start_mark.index, end, "[]")
    if sequence.flow_style:
        if at == len(items) - 1:
            return _replaced(text, _end(items[at - 1]), _end(items[at]), "")
        return _replaced(text, items[at].start_mark.index, items[at + 1].start_mark.index, "")
    start = text.rfind("\n", 0, items[at].start_mark.index) + 1
    return _replaced(text, start, min(len(text), _line_end(text, _end(items[at])) + 1), "")


def _child(mapping: Any, key: str) -> Any:
    pairs = mapping.value if isinstance(mapping, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _plain(item: Any) -> dict[str, str]:
    """An entry's words; what is no mapping of words is like none."""
    pairs = item.value if isinstance(item, yaml.MappingNode) else []
    return {key.value: value.value for key, value in pairs}


def _end(node: Any) -> int:
    """Where its last word ends: a block that the parser closes ends with the next token, after comments."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _replaced(text: str, start: int, end: int, by: str) -> str:
    return text[:start] + by + text[end:]
