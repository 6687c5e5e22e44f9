"""Becomes the worker of an actor, and dies with it: ``python -m … PARENT COMMAND...``. Knows nothing of what it starts.

The kernel sends SIGKILL when the parent ends (prctl(2), PR_SET_PDEATHSIG); that stays over an exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        raise SystemExit("the actor ended before its worker began")
    words = [sys.executable, *command[1:]]
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
