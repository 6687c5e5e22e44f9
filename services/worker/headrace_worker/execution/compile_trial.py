"""Compiles what clients send in a process that may die of it: some short texts take minutes, gigabytes or the stack.

    engine --Vocabulary, then one Source at a time--> this process --fork--> one child per source, under limits
           <--one line of JSON per source: null, or a sentence about what is wrong--

Run as `python -m headrace_worker.execution.compile_trial`, pickles in, lines out. It stays single-threaded, so that it
can fork; a source that has passed here is compiled again by the engine itself, as the result is costlier to carry than
to make. The standard input's end is this process's.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
from typing import TYPE_CHECKING, BinaryIO

from headrace_worker.execution.grammar_backend import Vocabulary, compile_source, explain, make_compiler
from headrace_worker.execution.grammar_source import Source
from headrace_worker.execution.trial_limits import TrialLimits
from headrace_worker.parallel.lifeline import die_with_parent

if TYPE_CHECKING:
    from headrace_worker.execution.grammar_backend import Compiler

# The streams that run go first.
_NICE = 5


def main() -> None:
    die_with_parent()
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    jobs: BinaryIO = sys.stdin.buffer
    limits, vocabulary = pickle.load(jobs)
    assert isinstance(limits, TrialLimits), f"limits come first, not {limits!r}"
    assert isinstance(vocabulary, Vocabulary), "the vocabulary comes with the limits"
    compiler = make_compiler(vocabulary)
    while True:
        try:
            source = pickle.load(jobs)
        except EOFError:
            return
        _try_in_child(source, compiler, limits, out)


def _try_in_child(source: Source, compiler: Compiler, limits: TrialLimits, out: int) -> None:
    child = os.fork()
    if child == 0:
        die_with_parent()
        _limit(limits)
        _answer(out, _try(source, compiler))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM):
        _answer(out, f"takes more than {limits.cpu_s:g} seconds to compile")
    elif status:
        _answer(out, "is too large or too deeply nested to compile")


def _try(source: Source, compiler: Compiler) -> str | None:
    try:
        compile_source(compiler, source)
    except (RuntimeError, ValueError, MemoryError) as error:
        return explain(error)
    return None


def _limit(limits: TrialLimits) -> None:
    """What goes over it ends this process by a signal that native code cannot ignore, or fails to allocate."""
    os.nice(_NICE)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as sizes:
            in_use = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + limits.memory_bytes,) * 2)


def _answer(out: int, detail: str | None) -> None:
    os.write(out, json.dumps(detail).encode() + b"\n")


if __name__ == "__main__":
    main()
