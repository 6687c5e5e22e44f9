"""The engine's hold on the process that tries sources: starts it, asks it, and starts it again if it is gone.

Knows no request. One thread asks at a time.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

from headrace_worker.execution.grammar_backend import Vocabulary
from headrace_worker.execution.grammar_source import Source
from headrace_worker.execution.trial_limits import TrialLimits

_GOODBYE_S = 2.0


class TrialLost(Exception):
    """The process ended without an answer; the next question starts another one."""


class TrialProcess:
    """Costs nothing before `start` or the first `ask`."""

    def __init__(self, vocabulary: Vocabulary, limits: TrialLimits) -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait until it can compile, which takes seconds. Raises TrialLost."""
        if self._process is not None:
            return
        # A library with threads of its own could not be forked.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            (sys.executable, "-m", "headrace_worker.execution.compile_trial"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it would log every client's mistake
            env=environment,
        )
        self._tell((self._limits, self._vocabulary))

    def ask(self, source: Source) -> str | None:
        """What is wrong with the source; None if it compiles within the limits. Raises TrialLost."""
        self.start()
        self._tell(source)
        assert self._process is not None and self._process.stdout is not None, "it was started"
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise TrialLost("the process that tries grammars has ended")
        detail: str | None = json.loads(line)
        return detail

    def close(self) -> None:
        """Ends the process; a later question starts it again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_GOODBYE_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "both ends are pipes"
            try:
                pipe.close()
            except BrokenPipeError:  # what was still buffered for it
                continue

    def _tell(self, message: object) -> None:
        assert self._process is not None and self._process.stdin is not None, "it was started"
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except OSError as error:
            self.close()
            raise TrialLost(f"the process that tries grammars is gone: {error}") from error
