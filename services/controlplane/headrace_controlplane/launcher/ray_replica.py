"""The actor of one replica: it runs the worker as its child, on whichever node Ray put it. Knows no launcher.

The worker is told by the kernel when its actor is gone, so that a replica whose actor was lost is lost as well, and no
second one of it can run beside it. Needs on its node: this package, the worker's, and the same Ray and Python.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace_controlplane.launcher.last_words import last_words, opened_log

DIRECTORY, NODE_IP = "{directory}", "{node_ip}"
"""Stand for the directory of the node and for its address, in a command."""


class Replica:
    """Made into an actor by the keeper. `files` are written beside the log, for their owner alone."""

    def __init__(self, replica_id: str, command: Sequence[str], files: Mapping[str, str], root: str) -> None:
        import ray

        self._node_ip = str(ray.util.get_node_ip_address())
        directory = Path(root) / replica_id
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            path = directory / name
            path.touch(mode=0o600)
            path.write_text(content, "utf-8")
        words = [word.replace(DIRECTORY, str(directory)).replace(NODE_IP, self._node_ip) for word in command]
        self._log = directory / "log"
        with opened_log(self._log) as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "headrace_controlplane.launcher.ray_child", str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            )

    def status(self) -> dict[str, Any]:
        """`pid` is 0 when the worker has ended, and `words` say how."""
        exit_code = self._child.poll()
        words = last_words(self._log, exit_code) if exit_code is not None else ""
        return {"pid": 0 if exit_code is not None else self._child.pid, "node": self._node_ip, "words": words}

    def stop(self) -> None:
        """SIGTERM, on which a worker drains."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
