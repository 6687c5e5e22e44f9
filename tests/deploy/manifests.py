"""The deployment files as data, and the settings that a service would start with there."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headrace_kit import settings
from tests.contract.flag_lists import config_type

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
KUBERNETES = ROOT / "deploy/kubernetes"
SERVICES = ("gateway", "policy", "router", "controlplane", "worker")
WORKLOADS = ("Deployment", "StatefulSet")
POLICY_TOML = 'redis = "redis://:secret@redis:6379"\n'


def compose() -> dict[str, Any]:
    """compose.yaml as Compose reads it in an empty environment."""
    text = re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda match: match[1] or "", COMPOSE.read_text("utf-8"))
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


@cache
def kubernetes() -> dict[str, dict[str, Any]]:
    """Every object of the base, by its kind/name."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))
    files = [(KUBERNETES / name).read_text("utf-8") for name in kustomization["resources"]]
    found = [item for text in files for item in yaml.safe_load_all(text)]
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in found}


def pods() -> dict[str, dict[str, Any]]:
    """The pod of each workload, by the workload's name."""
    found = {key: item for key, item in kubernetes().items() if item["kind"] in WORKLOADS}
    return {key.partition("/")[2]: item["spec"]["template"]["spec"] for key, item in found.items()}


def started_with(service: str, argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Any:
    """The configuration of a service in its container; raises SettingsError for one that would not start."""
    policy = folder / "policy.toml"
    policy.write_text(POLICY_TOML)
    service_toml = str(ROOT / "deploy/compose/service.toml")
    places = {"/etc/headrace/service.toml": service_toml, "/run/secrets/policy.toml": str(policy)}
    moved = [_moved(word, places) if word.startswith("--config=") else word for word in argv]
    return settings.resolve(config_type(service), service=service, argv=moved, environ=environ)


def _moved(word: str, places: Mapping[str, str]) -> str:
    for inside, outside in places.items():
        word = word.replace(inside, outside)
    return word
