"""One frozen dataclass per service: field = flag = environment variable = key of optional TOML files.

Precedence: flag > environment > file > default. Unknown names are refused in all three. Knows no service's fields.
"""

import argparse
import dataclasses
import math
import os
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

T = TypeVar("T")
_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class SettingsError(ValueError):
    """A setting that its operator must correct; the text is one sentence that names it."""


def load(
    config_type: type[T], *, service: str, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> T:
    """The configuration, or one sentence on stderr and exit code 2; --help and --version print and exit with 0.

    Field types: str, int, float, bool, Path, tuple[str, ...], Literal, X | None; metadata: ``help`` and ``secret``.
    """
    try:
        return resolve(
            config_type,
            service=service,
            argv=sys.argv[1:] if argv is None else argv,
            environ=os.environ if environ is None else environ,
        )
    except SettingsError as error:
        print(f"headrace-{service}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def resolve(config_type: type[T], *, service: str, argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """The same, but raises SettingsError instead of exiting with code 2."""
    fields, hints, prefix = _fields(config_type), typing.get_type_hints(config_type), _variable(service, "")
    flags = _read_flags(config_type, service, argv)
    variables = {_variable(service, name): name for name in (*fields, "config")}
    if unknown := sorted(name for name in environ if name.startswith(prefix) and name not in variables):
        raise SettingsError(f"unknown environment variable {unknown[0]}")
    env = {name: environ[variable] for variable, name in variables.items() if variable in environ}
    path = flags.pop("config", env.pop("config", None))
    file = {name: raw for part in path.split(",") for name, raw in _read_file(part).items()} if path else {}
    if unknown := sorted(file.keys() - fields.keys()):
        raise SettingsError(f"unknown key {unknown[0]} in {path}")
    values = {name: _parse(f"{name} in {path}", raw, hints[name]) for name, raw in file.items()}
    values |= {name: _parse(_variable(service, name), raw, hints[name]) for name, raw in env.items()}
    values |= {name: _parse(_flag(name), raw, hints[name]) for name, raw in flags.items()}
    for name, field in fields.items():
        if name not in values and _default(field) is dataclasses.MISSING:
            raise SettingsError(f"{_flag(name)} (or {_variable(service, name)}) is required")
    try:
        return config_type(**values)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def describe(config: Any) -> dict[str, object]:
    """Field name to value, secrets masked; for the start-up log line."""
    values = {name: getattr(config, name) for name in _fields(type(config))}
    return {n: "***" if _fields(type(config))[n].metadata.get("secret") and v else v for n, v in values.items()}


def version(service: str) -> str:
    """Version of the installed distribution; a source tree on PYTHONPATH has none."""
    try:
        return metadata.version(f"headrace-{service}")
    except metadata.PackageNotFoundError:
        return "0+source"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _variable(service: str, name: str) -> str:
    return f"HEADRACE_{service}_{name}".upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fields(config_type: Any) -> dict[str, "dataclasses.Field[Any]"]:
    fields = {field.name: field for field in dataclasses.fields(config_type)}
    assert "config" not in fields, "the name `config` belongs to --config FILE"
    for name, field in fields.items():
        assert not (field.metadata.get("secret") and field.repr), f"secret field {name} needs repr=False"
    return fields


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _read_flags(config_type: type, service: str, argv: Sequence[str]) -> dict[str, str]:
    hints = typing.get_type_hints(config_type)
    parser = _Parser(
        f"headrace-{service}", description=config_type.__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version(service)}")
    files = f"TOML files of field = value, comma-separated; the last wins [{_variable(service, 'config')}]"
    parser.add_argument("--config", metavar="FILE", help=files)
    for name, field in _fields(config_type).items():
        default = _default(field)
        shown = "required" if default is dataclasses.MISSING else "***" if field.metadata.get("secret") else default
        text = f"{field.metadata.get('help', '')} ({_kind(hints[name])[2]}; {shown}) [{_variable(service, name)}]"
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if hints[name] is bool else {}
        parser.add_argument(_flag(name), metavar="X", help=text.strip().replace("%", "%%"), **switch)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        raise SettingsError(f"unknown flag {unknown[0].partition('=')[0]}")
    return vars(known)


def _read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the configuration file {path}: {error}") from error


def _parse(source: str, raw: object, hint: Any) -> Any:
    """Turns text into ``hint``; a value of a TOML file must already have the type."""
    if types.NoneType in typing.get_args(hint) and raw == "":
        return None
    from_text, natives, meaning = _kind(hint)
    try:
        if not isinstance(raw, str) and type(raw) not in natives:
            raise TypeError
        return from_text(raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{source}: {raw!r} is not {meaning}") from error


def _kind(hint: Any) -> tuple[Callable[[Any], Any], tuple[type, ...], str]:
    """How a type is read from text or its native value, the native TOML types, and its name for people."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        assert len(inner) == 1, f"of unions only X | None is supported, not {hint}"
        return _kind(inner[0])
    if typing.get_origin(hint) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(hint)}
        return choices.__getitem__, (), "one of " + ", ".join(choices)
    kinds: dict[Any, tuple[Callable[[Any], Any], tuple[type, ...], str]] = {
        str: (str, (), "text"),
        Path: (Path, (), "a path"),
        int: (int, (int,), "an integer"),
        float: (_finite, (int, float), "a finite number"),
        tuple[str, ...]: (_words, (list,), "a list of words"),
        bool: (lambda raw: _BOOLS[str(raw).lower()], (bool,), "true or false"),
    }
    return kinds[hint]


def _finite(raw: Any) -> float:
    if not math.isfinite(float(raw)):
        raise ValueError
    return float(raw)


def _words(raw: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in (raw.split(",") if isinstance(raw, str) else raw) if word.strip())
