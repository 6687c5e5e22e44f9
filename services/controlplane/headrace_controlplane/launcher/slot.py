"""Becomes a replica's process, if no other process is that replica: ``python -m … BASE COMMAND...``.

The lock is held by the process itself for as long as it lives, so that no crash of the control plane, at whatever
moment, can lead to two processes of one replica or to one that nobody knows. Knows nothing of what it starts.
"""

import fcntl
import json
import os
import sys
from pathlib import Path

import psutil

LOCK, PROCESS = ".lock", ".json"
TAKEN_EXIT_CODE = 75


def main() -> None:
    base, command = Path(sys.argv[1]), sys.argv[2:]
    lock = os.open(base.with_suffix(LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another process holds {base.with_suffix(LOCK)}", file=sys.stderr)
        raise SystemExit(TAKEN_EXIT_CODE) from None
    os.set_inheritable(lock, True)
    facts = {"pid": os.getpid(), "started_at": psutil.Process().create_time()}
    beside = base.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(facts), "utf-8")
    os.replace(beside, base.with_suffix(PROCESS))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
