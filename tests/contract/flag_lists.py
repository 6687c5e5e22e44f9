"""The settings of every service as text, one a line; ``python -m tests.contract.flag_lists`` writes the golden files.

A new line in a golden file is a new knob: its commit says who owns it and why no default would do.
"""

import dataclasses
import importlib
import typing
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "flags"


def services() -> list[str]:
    """Every service that has a configuration."""
    return sorted(path.parent.name.removeprefix("headrace_") for path in ROOT.glob("services/*/headrace_*/config.py"))


def config_type(service: str) -> type:
    """The one configuration dataclass of a service."""
    module = importlib.import_module(f"headrace_{service}.config")
    found = [
        kind
        for name, kind in vars(module).items()
        if name.endswith("Config")
        and dataclasses.is_dataclass(kind)
        and isinstance(kind, type)
        and kind.__module__ == module.__name__
    ]
    assert len(found) == 1, f"{module.__name__} must hold exactly one configuration, not {found}"
    return found[0]


def flag_list(service: str) -> str:
    """One line a flag: name, environment variable, type and default, in the order of the names."""
    config = config_type(service)
    hints, lines = typing.get_type_hints(config), []
    for field in dataclasses.fields(config):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = "required" if default is dataclasses.MISSING else repr(default)
        kind = hints[field.name].__name__ if isinstance(hints[field.name], type) else str(hints[field.name])
        names = f"--{field.name.replace('_', '-')} HEADRACE_{service}_{field.name}".split()
        lines.append(f"{names[0]} {names[1].upper()} {kind} = {shown}")
    return "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    for name in services():
        (GOLDEN / f"{name}.txt").write_text(flag_list(name), "utf-8")
