"""How a command ends that a person interrupts, or whose output nobody reads any more. Knows no command."""

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130


def ended(main: Callable[[], int]) -> int:
    """The exit status of `main`: 130 where it was interrupted, 0 where the reader of its output went away."""
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer would fail once more when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status
