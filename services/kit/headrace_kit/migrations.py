"""The schema of a SQLite file as steps, only ever appended to; a file says how many it has had. Knows no table."""

import sqlite3
from collections.abc import Sequence

from headrace_kit.listeners import StartError


def migrate(database: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Brings a file to the newest schema, one transaction a step; StartError for a file that a newer one of us left."""
    (done,) = database.execute("PRAGMA user_version").fetchone()
    if done > len(steps):
        (_, _, path) = database.execute("PRAGMA database_list").fetchone()
        raise StartError(2, f"the schema of {path} is version {done}, and this service knows {len(steps)} at most")
    for number, step in enumerate(steps[done:], done + 1):
        database.executescript(f"BEGIN IMMEDIATE; {step}; PRAGMA user_version = {number}; COMMIT;")
