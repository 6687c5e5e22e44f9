"""One JSON line per event on stderr, credentials masked. ``log.info("event_name", extra={"field": value})``.

The names of LogRecord's own attributes (name, args, module, ...) cannot be extra fields.
"""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from headrace_kit.errors import redact

_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRET_NAMES = frozenset({"authorization", "token", "api_key", "admin_key", "secret", "password", "credential"})
_bound: ContextVar[dict[str, object] | None] = ContextVar("headrace_log_fields", default=None)
_process: dict[str, object] = {}


def setup(service: str, instance: str, level: str = "info") -> None:
    """Makes this format the only one of the process."""
    _process.update(service=service, instance=instance)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def set_process_fields(**fields: object) -> None:
    """Fields of every later line of this process, such as snapshot_version; ``bind`` overrides them."""
    _process.update(fields)


@contextlib.contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Adds fields (response_id, trace_id, ...) to every line of this context and the tasks it starts."""
    token = _bound.set({**(_bound.get() or {}), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


class JsonFormatter(logging.Formatter):
    """ts (Unix seconds), level, event, then process, bound and extra fields; an exception is one field."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            **_process,
            "event": record.getMessage(),
            **(_bound.get() or {}),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _RESERVED}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(_clean(fields))


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): "***" if key in _SECRET_NAMES else _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    plain = value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else redact(str(value))
