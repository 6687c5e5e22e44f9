"""Compiles constraints off the engine's loop: one thread, tenants in turns, every outcome remembered.

    compile(grammar) --> known? at once
                     --> tried in a process that may die --> compiled here --> the matchers' automaton

Knows no sequence and no batch. xgrammar is imported by the thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from headrace_worker.execution.grammar_backend import Vocabulary, compile_source, explain, make_compiler
from headrace_worker.execution.grammar_source import BadSource, Source, read_source
from headrace_worker.execution.runner import Opened, Opening, Rejected
from headrace_worker.execution.trial_limits import TrialLimits
from headrace_worker.execution.trial_process import TrialLost, TrialProcess
from headrace_worker.execution.turns import Turns
from headrace_worker.scheduling.request import Grammar

if TYPE_CHECKING:
    from headrace_worker.execution.grammar_backend import Compiled, Compiler

    Outcome: TypeAlias = Compiled | Rejected

log = logging.getLogger(__name__)
_MAX_WAITING = 64
_MAX_CALLERS = 1024
_MAX_REMEMBERED = 512
_MAX_REMEMBERED_BYTES = 256 << 20
_RETRY_AFTER_S = 1.0
_BUSY = {
    "busy": "too many grammars wait to be compiled",
    "share_exceeded": "this tenant fills its half of the room in which grammars wait to be compiled",
}


def invalid(detail: str) -> Rejected:
    return Rejected("invalid_grammar", "grammar", detail)


@dataclass(eq=False)
class Compilation(Opening):
    """One caller's wait for a compiled constraint. The thread sets `result`, once, and then `done`."""

    result: Outcome | None = None
    abandoned: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.result is not None:
            self.done.set()

    def outcome(self) -> Opened | Rejected | None:
        if self.result is None or isinstance(self.result, Rejected):
            return self.result
        return Opened()

    @property
    def compiled(self) -> Compiled:
        assert self.result is not None and not isinstance(self.result, Rejected), "it was opened before"
        return self.result


@dataclass(eq=False)
class _Job:
    """One source that is to be compiled, for everybody who asks for it meanwhile."""

    source: Source
    callers: list[Compilation]

    def finish(self, outcome: Outcome) -> None:
        for caller in self.callers:
            caller.result = outcome
            caller.done.set()


class _Memory:
    """The latest outcomes, bounded in number and bytes; refusals too, so that none is paid for twice."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[Source, Outcome] = OrderedDict()
        self._num_bytes = 0

    def find(self, source: Source) -> Outcome | None:
        if source in self._outcomes:
            self._outcomes.move_to_end(source)
        return self._outcomes.get(source)

    def keep(self, source: Source, outcome: Outcome) -> None:
        self._outcomes[source] = outcome
        self._num_bytes += _size(source, outcome)
        while len(self._outcomes) > _MAX_REMEMBERED or self._num_bytes > _MAX_REMEMBERED_BYTES:
            self._num_bytes -= _size(*self._outcomes.popitem(last=False))


def _size(source: Source, outcome: Outcome) -> int:
    return len(source.text) + (0 if isinstance(outcome, Rejected) else outcome.memory_size_bytes)


class GrammarCompiler:
    """`compile` is called by the engine's loop and never waits."""

    def __init__(self, vocabulary: Vocabulary, limits: TrialLimits | None = None) -> None:
        self._vocabulary = vocabulary
        self._trial = TrialProcess(vocabulary, limits or TrialLimits())
        self._changed = threading.Condition()
        self._waiting: Turns[_Job] = Turns(_MAX_WAITING)
        # Waiting and being compiled.
        self._jobs: dict[Source, _Job] = {}
        self._memory = _Memory()
        self._compiler: Compiler | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def load(self) -> None:
        """Import the library: most of a second in which a process's other threads stand still, so before it serves."""
        self._compiler = make_compiler(self._vocabulary)

    def start(self) -> None:
        """Get ready in the background what the first compilation would have to wait for."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
                self._thread.start()

    def compile(self, grammar: Grammar, fair_key: str) -> Compilation:
        """Its outcome is known at once, or later: `Rejected` is invalid_grammar, busy or share_exceeded."""
        try:
            source = read_source(grammar)
        except BadSource as error:
            return Compilation(invalid(str(error)))
        with self._changed:
            known = self._memory.find(source)
            if known is not None:
                return Compilation(known)
            compilation = Compilation()
            job = self._jobs.get(source)
            if job is not None and len(job.callers) < _MAX_CALLERS:
                job.callers.append(compilation)
                return compilation
            reason = "busy" if job is not None else self._waiting.refusal(fair_key)
            if reason is not None:
                return Compilation(Rejected(reason, "", _BUSY[reason], _RETRY_AFTER_S))
            job = self._jobs[source] = _Job(source, [compilation])
            self._waiting.put(fair_key, job)
            self._changed.notify()
        self.start()
        return compilation

    def close(self) -> None:
        """End thread and process; what waits is never told."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._trial.close()

    def _work(self) -> None:
        try:
            self._trial.start()
        except TrialLost as error:
            log.warning("grammar_trial_lost: %s", error)
        if self._compiler is None:
            self.load()
        assert self._compiler is not None, "it was loaded"
        while (job := self._next()) is not None:
            outcome, final = self._outcome(job.source, self._compiler)
            with self._changed:
                if final:
                    self._memory.keep(job.source, outcome)
                del self._jobs[job.source]
                job.finish(outcome)

    def _next(self) -> _Job | None:
        """The next one that somebody still waits for; None when closed."""
        with self._changed:
            while True:
                while not self._closed and not len(self._waiting):
                    self._changed.wait()
                if self._closed:
                    return None
                job = self._waiting.take()
                if not all(caller.abandoned for caller in job.callers):
                    return job
                del self._jobs[job.source]

    def _outcome(self, source: Source, compiler: Compiler) -> tuple[Outcome, bool]:
        """What came of it, and whether it would be the same again."""
        try:
            detail = self._trial.ask(source)
        except TrialLost as error:
            log.warning("grammar_trial_lost: %s", error)
            return Rejected("busy", "", "grammars cannot be compiled at the moment", _RETRY_AFTER_S), False
        if detail is not None:
            return invalid(detail), True
        try:
            return compile_source(compiler, source), True
        except RuntimeError as error:
            return invalid(explain(error)), True
