"""Section ``tenants``: who may ask for how much of what. Knows no API key: those are kept beside the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace_controlplane.fleet.problems import Problem, join
from headrace_controlplane.fleet.schema import setting

LimitName = Literal["rpm", "tpm", "input_tpm", "output_tpm", "concurrency", "tokens_per_day", "spend_per_day"]
_MOST = 1e15


@dataclass(frozen=True)
class Limit:
    """Units that fit: requests or tokens per minute, responses at once, tokens or money per day."""

    name: LimitName = setting(..., "what is limited")
    capacity: float = setting(..., "units that fit", minimum=0, maximum=_MOST)
    scope: Literal["tenant", "project", "key", "model"] = setting("tenant", "what shares one level")
    subject: str = setting("", "project, key id or model that it belongs to; empty: each one of its own")

    def check(self, path: str) -> Iterator[Problem]:
        if self.scope == "tenant" and self.subject:
            yield Problem(join(path, "subject"), "a limit of the whole tenant has no subject")


@dataclass(frozen=True)
class LocalAllowance:
    """What one policy process may grant while the quota store is away."""

    rpm: float = setting(..., "requests per minute", minimum=0, maximum=_MOST)
    tpm: float = setting(..., "tokens per minute", minimum=0, maximum=_MOST)


@dataclass(frozen=True)
class Tenant:
    """One tenant. Everything left out is unlimited or everyone's default."""

    NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"

    weight: float = setting(1.0, "share of a contended queue", minimum=0.001, maximum=1000)
    sharing_group: str = setting("", "tenants of one group share cached prefixes; empty: alone")
    slo_class: str = setting("", "SLO class of its requests; empty: the default class")
    models: tuple[str, ...] = setting((), "models that it may name; empty: all")
    limits: tuple[Limit, ...] = setting((), "its limits")
    local_allowance: LocalAllowance | None = setting(
        None, "what it may spend while the quota store is away; nothing: it is refused then"
    )
    rules: tuple[str, ...] = setting((), "names of its safety rules")

    def check(self, path: str) -> Iterator[Problem]:
        seen: set[tuple[str, str, str]] = set()
        for i, limit in enumerate(self.limits):
            identity = (limit.name, limit.scope, limit.subject)
            if identity in seen:
                yield Problem(join(join(path, "limits"), i), f"{limit.name} of this scope and subject is there already")
            seen.add(identity)
