"""The whole of fleet.yaml: text in, a checked ``Fleet`` or all of its problems out. Reads no file and no store."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from headrace_controlplane.fleet.classes import SloClass
from headrace_controlplane.fleet.models import Model
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.fleet.prices import EVERY_OTHER, Price
from headrace_controlplane.fleet.problems import InvalidFleet, Problem, join
from headrace_controlplane.fleet.rollout import Rollout
from headrace_controlplane.fleet.safety import Safety
from headrace_controlplane.fleet.schema import read, setting
from headrace_controlplane.fleet.tenants import Tenant

MAX_BYTES = 1 << 20
_MAX_DEPTH = 12
_OPEN = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSE = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


@dataclass(frozen=True)
class Fleet:
    """What should exist. Sections left out: one class without haste, one tenant ``dev``, no prices, no rules."""

    models: dict[str, Model] = setting(..., "every model by name")
    pools: dict[str, Pool] = setting(..., "every pool by name")
    classes: dict[str, SloClass] = setting(
        {"standard": SloClass(ttft_ms=30_000, default=True)}, "every SLO class by name"
    )
    tenants: dict[str, Tenant] = setting({"dev": Tenant()}, "every tenant by id")
    prices: dict[str, Price] = setting({}, "prices by model; * is every other model")
    safety: Safety = setting(Safety(), "rules and origins")
    rollout: Rollout = setting(Rollout(), "how changes are brought about")

    @property
    def default_class(self) -> str:
        return next(name for name, slo in self.classes.items() if slo.default)

    def revision_of(self, pool: str) -> str:
        """Revision that the replicas of a pool serve."""
        model = self.models[self.pools[pool].model]
        return model.canary.revision if self.pools[pool].canary and model.canary else model.revision

    def source_of(self, pool: str) -> str:
        """Where the replicas of a pool get their weights from."""
        model = self.models[self.pools[pool].model]
        return (model.canary.source if self.pools[pool].canary and model.canary else "") or model.source

    def check(self, _path: str) -> Iterator[Problem]:
        yield from self._check_models()
        yield from self._check_pools()
        yield from self._check_tenants()
        if [slo.default for slo in self.classes.values()].count(True) != 1:
            yield Problem("classes", "expected exactly one class with default: true")
        for name in self.prices:
            if name != EVERY_OTHER:
                yield from self._known("model", self.models, [(join("prices", name), name)])
        for name, rule in self.safety.rules.items():
            if rule.guard_model:
                path = join(join("safety.rules", name), "guard_model")
                yield from self._known("model", self.models, [(path, rule.guard_model)])

    def _check_models(self) -> Iterator[Problem]:
        taken = {name: join("models", name) for name in self.models}
        for name, model in self.models.items():
            for i, alias in enumerate(model.aliases):
                path = join(join(join("models", name), "aliases"), i)
                if alias in taken:
                    yield Problem(path, f'"{alias}" is taken by {taken[alias]}')
                taken.setdefault(alias, path)
            if model.canary is not None and not any(p.canary for p in self.pools.values() if p.model == name):
                yield Problem(join(join("models", name), "canary"), "no pool of the model has canary: true")

    def _check_pools(self) -> Iterator[Problem]:
        for name, pool in self.pools.items():
            path = join("pools", name)
            yield from self._known("model", self.models, [(join(path, "model"), pool.model)])
            yield from self._known("class", self.classes, _listed(join(path, "classes"), pool.classes))
            model = self.models.get(pool.model)
            if model is None:
                continue
            if (self.source_of(name) == "scripted") != (pool.engine == "scripted"):
                source = self.source_of(name)
                message = f"the source of {pool.model} is {source}: the scripted engine and source go together"
                yield Problem(join(path, "engine"), message)
            if pool.canary and model.canary is None:
                yield Problem(join(path, "canary"), f"{pool.model} has no revision on trial")

    def _check_tenants(self) -> Iterator[Problem]:
        for name, tenant in self.tenants.items():
            path = join("tenants", name)
            yield from self._known("model", self.models, _listed(join(path, "models"), tenant.models))
            yield from self._known("rule", self.safety.rules, _listed(join(path, "rules"), tenant.rules))
            if tenant.slo_class:
                yield from self._known("class", self.classes, [(join(path, "slo_class"), tenant.slo_class)])
            for i, limit in enumerate(tenant.limits):
                if limit.scope == "model" and limit.subject:
                    subject = join(join(join(path, "limits"), i), "subject")
                    yield from self._known("model", self.models, [(subject, limit.subject)])

    def _known(self, noun: str, names: Mapping[str, object], wanted: list[tuple[str, str]]) -> Iterator[Problem]:
        for path, name in wanted:
            if name not in names:
                yield Problem(path, f'no {noun} "{name}"; known are {", ".join(names) or "none"}')


def parse(text: str) -> Fleet:
    """The fleet that ``text`` (YAML) describes; raises InvalidFleet with every problem found."""
    problems: list[Problem] = []
    fleet = read(Fleet, load(text), "", problems)
    if fleet is None:
        raise InvalidFleet(problems)
    return fleet


def load(text: str) -> Any:
    """YAML as plain values; raises InvalidFleet. Duplicate keys, anchors and deep nesting are refused."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InvalidFleet([Problem("", f"the file is over {MAX_BYTES} bytes")])
    try:
        _check_events(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidFleet([Problem(where, error.problem or "not YAML")]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFleet([Problem("", f"not YAML: {error}")]) from error


def default_text() -> str:
    """The fleet of a newcomer, shipped with this package."""
    return resources.files("headrace_controlplane.fleet").joinpath("default.yaml").read_text("utf-8")


def _listed(path: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(join(path, i), name) for i, name in enumerate(names)]


def _check_events(text: str) -> None:
    """Refuses what would cost without bound, before anything is built."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, _OPEN) - isinstance(event, _CLOSE)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("anchors and aliases are not supported")
        if depth > _MAX_DEPTH:
            raise yaml.YAMLError("nested too deeply")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML's own takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
