"""A disk that takes no more, told to whoever asked for a change. Knows no table."""

import contextlib
import sqlite3
from collections.abc import Iterator

from headrace_kit.errors import HeadraceError

_RETRY_S = 60.0


@contextlib.contextmanager
def told_when_full() -> Iterator[None]:
    """Raises HeadraceError where SQLite says that the disk is full."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        message = "the disk of the control plane is full: nothing was written"
        raise HeadraceError("storage_full", message, retry_after_s=_RETRY_S) from error
