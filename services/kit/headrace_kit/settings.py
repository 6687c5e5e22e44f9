"""One frozen dataclass per service: field = flag = environment variable = key of an optional TOML file.

Precedence: flag > environment > file > default. Unknown names are refused in all three. Knows no service's fields.
"""

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


def load(config_type: type[T], *, service: str, argv: Sequence[str] | None = None,
         environ: Mapping[str, str] | None = None) -> T:
    """Returns the configuration of ``service``, or prints one sentence and exits with code 2.

    ``--help`` and ``--version`` print and exit with code 0.
    """
    args = sys.argv[1:] if argv is None else argv
    if "--help" in args or "-h" in args:
        _leave(0, usage(config_type, service), sys.stdout)
    if "--version" in args:
        _leave(0, f"headrace-{service} {version(service)}", sys.stdout)
    try:
        return resolve(config_type, service=service, argv=args, environ=os.environ if environ is None else environ)
    except SettingsError as error:
        _leave(2, f"headrace-{service}: {error}", sys.stderr)


def resolve(config_type: type[T], *, service: str, argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """The same without process exits: raises SettingsError."""
    fields, hints, prefix = _fields(config_type), typing.get_type_hints(config_type), _env_prefix(service)
    flags = _read_flags(argv, fields, hints)
    env = {name.removeprefix(prefix).lower(): name for name in sorted(environ) if name.startswith(prefix)}
    for name, variable in env.items():
        if (name not in fields and name != "config") or variable != prefix + name.upper():
            raise SettingsError(f"unknown environment variable {variable}")
    path = flags.pop("config", None) or environ.get(prefix + "CONFIG")
    values: dict[str, Any] = _read_file(Path(path), fields, hints) if path else {}
    values |= {n: _parse(v, environ[v], hints[n]) for n, v in env.items() if n != "config"}
    values |= {name: _parse(_flag(name), raw, hints[name]) for name, raw in flags.items()}
    for name, field in fields.items():
        if name not in values and _default(field) is dataclasses.MISSING:
            raise SettingsError(f"{_flag(name)} (or {prefix}{name.upper()}) is required")
    try:
        return config_type(**values)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def describe(config: object) -> dict[str, object]:
    """Field name to value, secrets masked; for the start-up log line."""
    fields = _fields(type(config))
    return {n: "***" if f.metadata.get("secret") and getattr(config, n) else getattr(config, n)
            for n, f in fields.items()}


def usage(config_type: type, service: str) -> str:
    """The text of ``--help``: every field with its type, default, environment name and meaning."""
    hints, prefix = typing.get_type_hints(config_type), _env_prefix(service)
    lines = [f"usage: headrace-{service} [--FLAG VALUE] ...", "", (config_type.__doc__ or "").strip(), ""]
    for name, field in _fields(config_type).items():
        default = _default(field)
        shown = "required" if default is dataclasses.MISSING else f"default {_show(default)}"
        if field.metadata.get("secret") and default:
            shown = "default ***"
        lines.append(f"  {_flag(name)} {_type_name(hints[name])}  [{shown}] [{prefix}{name.upper()}]")
        lines.append(f"      {field.metadata.get('help', '')}".rstrip())
    lines += [f"  --config FILE  [{prefix}CONFIG]", "      TOML file whose keys are the field names",
              "  --help, --version"]
    return "\n".join(line for line in lines)


def version(service: str) -> str:
    """Version of the installed distribution; a source tree on PYTHONPATH has none."""
    try:
        return metadata.version(f"headrace-{service}")
    except metadata.PackageNotFoundError:
        return "0+source"


def _leave(code: int, text: str, stream: typing.TextIO) -> NoReturn:
    print(text, file=stream)
    raise SystemExit(code)


def _env_prefix(service: str) -> str:
    return f"HEADRACE_{service.upper()}_"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fields(config_type: type) -> dict[str, "dataclasses.Field[Any]"]:
    fields = {field.name: field for field in dataclasses.fields(config_type)}
    assert "config" not in fields, "the name `config` belongs to --config FILE"
    for name, field in fields.items():
        assert not (field.metadata.get("secret") and field.repr), f"secret field {name} needs repr=False"
    return fields


def _default(field: "dataclasses.Field[Any]") -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _read_flags(argv: Sequence[str], fields: Mapping[str, object], hints: Mapping[str, Any]) -> dict[str, str]:
    flags: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        name = word[2:].replace("-", "_")
        if (name not in fields and name != "config") or word != _flag(name):
            raise SettingsError(f"unknown flag {word}")
        if not equals and hints.get(name) is bool and (not rest or rest[0].lower() not in _BOOLS):
            value = "true"
        elif not equals:
            if not rest:
                raise SettingsError(f"{word} needs a value")
            value = rest.pop(0)
        flags[name] = value
    return flags


def _read_file(path: Path, fields: Mapping[str, object], hints: Mapping[str, Any]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the configuration file {path}: {error}") from error
    for key in table:
        if key not in fields:
            raise SettingsError(f"unknown key {key} in {path}")
    return {key: _parse(f"{key} in {path}", value, hints[key]) for key, value in table.items()}


def _parse(source: str, raw: object, hint: Any) -> Any:
    """Turns text (flag, environment) or a TOML value into ``hint``; a TOML value must already have the type."""
    inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        assert len(inner) == 1, f"{source}: only X | None is a supported union"
        return None if raw == "" else _parse(source, raw, inner[0])
    try:
        return _parser(hint)(raw)
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{source}: {raw!r} is not {_type_name(hint)}") from error


def _parser(hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) is Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}.__getitem__
    if hint == tuple[str, ...]:
        return _words
    parsers: dict[Any, Callable[[Any], Any]] = {str: _text, Path: lambda raw: Path(_text(raw)), bool: _boolean,
                                                int: _integer, float: _number}
    assert hint in parsers, f"unsupported settings type {hint}"
    return parsers[hint]


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _boolean(raw: object) -> bool:
    return raw if isinstance(raw, bool) else _BOOLS[_text(raw).lower()]


def _integer(raw: object) -> int:
    return raw if type(raw) is int else int(_text(raw))


def _number(raw: object) -> float:
    value = float(raw) if type(raw) in (int, float) else float(_text(raw))  # type: ignore[arg-type]
    if not math.isfinite(value):
        raise ValueError
    return value


def _words(raw: object) -> tuple[str, ...]:
    if isinstance(raw, list):
        return tuple(_text(word) for word in raw)
    return tuple(word.strip() for word in _text(raw).split(",") if word.strip())


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + "|".join(str(choice) for choice in typing.get_args(hint))
    names = {int: "an integer", float: "a finite number", bool: "true or false", Path: "a path", str: "text",
             tuple[str, ...]: "a list of words"}
    inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return names.get(hint) or _type_name(inner[0])


def _show(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else "none" if value is None else str(value)
