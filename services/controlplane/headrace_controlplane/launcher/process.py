"""Replicas as processes of this host that outlive the control plane and are adopted when it returns.

Files of a replica: ``ID.spec`` (what was asked for), ``ID.json`` and ``ID.lock`` (written and held by the process, see
slot.py), ``ID.stop`` (since when it is to leave), ``ID.log``. Knows no fleet and no registry.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from headrace_controlplane.launcher import devices
from headrace_controlplane.launcher.base import Launched, LaunchSpec
from headrace_controlplane.launcher.last_words import last_words, opened_log
from headrace_controlplane.launcher.slot import LOCK, PROCESS
from headrace_kit.files import write_atomically

log = logging.getLogger(__name__)
_SPEC, _STOP, _LOG, _ANNOUNCE = ".spec", ".stop", ".log", ".announce"
_KILL_AFTER_S = 10.0
_SAME_S = 2.0


class ProcessLauncher:
    """Implements Launcher; ``root`` holds the files of all replicas."""

    def __init__(self, root: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._root, self._wall = root, wall
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def observe(self) -> list[Launched]:
        """Every replica with a spec; one that outstays its time to leave is killed, with all its children."""
        return [self._look(path) for path in sorted(self._root.glob(f"*{_SPEC}"))]

    def start(self, spec: LaunchSpec) -> None:
        base = self._base(spec.replica_id)
        write_atomically(base.with_suffix(_SPEC), json.dumps(asdict(spec)).encode())
        base.with_suffix(_STOP).unlink(missing_ok=True)
        self._reap(spec.replica_id)
        with opened_log(base.with_suffix(_LOG)) as output:
            self._children[spec.replica_id] = subprocess.Popen(
                [sys.executable, "-m", "headrace_controlplane.launcher.slot", str(base), *spec.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **devices.environment(spec.devices)},
            )
        log.info("replica_started", extra={"replica": spec.replica_id, "pid": self._children[spec.replica_id].pid})

    def stop(self, replica_id: str) -> None:
        """SIGTERM, on which a replica drains; SIGKILL to its group when it has not left in time."""
        base = self._base(replica_id)
        if not base.with_suffix(_STOP).exists():
            write_atomically(base.with_suffix(_STOP), json.dumps({"since": self._wall()}).encode())
        pid = self._look(base).pid
        if pid:
            log.info("replica_stopped", extra={"replica": replica_id, "pid": pid})
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def forget(self, replica_id: str) -> None:
        self._reap(replica_id)
        base = self._base(replica_id)
        for suffix in (_SPEC, _STOP, PROCESS, LOCK, _ANNOUNCE):
            base.with_suffix(suffix).unlink(missing_ok=True)

    def _look(self, base: Path) -> Launched:
        raw, stop = _read_json(base.with_suffix(_SPEC)), _read_json(base.with_suffix(_STOP))
        assert raw is not None, f"{base} has a spec, for specs are written whole"
        lists: dict[str, Any] = {name: tuple(raw[name]) for name in ("command", "devices") if name in raw}
        spec = LaunchSpec(**{**raw, **lists})
        child = self._children.get(spec.replica_id)
        # A child that has not written its record yet has the pid that it will write.
        pid = child.pid if child is not None and child.poll() is None else self._pid(base)
        if stop is not None and pid and self._wall() > stop["since"] + spec.drain_s + _KILL_AFTER_S:
            log.warning("replica_killed", extra={"replica": spec.replica_id, "pid": pid})
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        words = "" if pid else last_words(base.with_suffix(_LOG), child.returncode if child is not None else None)
        return Launched(spec, alive=pid != 0, pid=pid, stopping=stop is not None, last_words=words)

    def _pid(self, base: Path) -> int:
        """The living process that wrote the record, or 0: the pid alone may be another's by now."""
        facts = _read_json(base.with_suffix(PROCESS))
        if facts is None:
            return 0
        try:
            process = psutil.Process(facts["pid"])
            same = abs(process.create_time() - facts["started_at"]) < _SAME_S
            return process.pid if same and process.status() != psutil.STATUS_ZOMBIE else 0
        except psutil.Error:
            return 0

    def _base(self, replica_id: str) -> Path:
        return self._root / replica_id

    def _reap(self, replica_id: str) -> None:
        child = self._children.pop(replica_id, None)
        assert child is None or child.poll() is not None, f"replica {replica_id} is running"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
