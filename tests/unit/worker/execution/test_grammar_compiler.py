"""The compiler's thread: tenants in turns, a bounded room, and a process that is started again when it is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from headrace_worker.execution.grammar_compiler import Compilation, GrammarCompiler
from headrace_worker.execution.runner import Opened, Rejected
from headrace_worker.execution.trial_limits import TrialLimits
from headrace_worker.scheduling.request import Grammar
from tests.unit.worker.execution.grammar_bench import VOCABULARY, settle


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    """Little memory, so that more can be asked for in a few milliseconds."""
    made = GrammarCompiler(VOCABULARY, TrialLimits(cpu_s=20.0, memory_bytes=16 << 20))
    yield made
    made.close()


@pytest.fixture
def asleep(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> GrammarCompiler:
    """A compiler whose thread never begins."""
    monkeypatch.setattr(compiler, "start", lambda: None)
    return compiler


def reason(compilation: Compilation) -> str | None:
    outcome = compilation.outcome()
    return outcome.reason if isinstance(outcome, Rejected) else None


def test_room_and_shares_are_bounded(asleep: GrammarCompiler) -> None:
    compiler = asleep
    asked = [compiler.compile(Grammar("regex", f"a{{{number}}}"), "greedy") for number in range(1, 41)]
    assert [reason(each) for each in asked] == [None] * 32 + ["share_exceeded"] * 8
    others = [compiler.compile(Grammar("regex", f"b{{{number}}}"), f"t{number}") for number in range(1, 34)]
    assert [reason(each) for each in others] == [None] * 32 + ["busy"]
    busy = others[-1].outcome()
    assert isinstance(busy, Rejected) and busy.retry_after_s == 1.0


def test_one_that_nobody_waits_for_is_passed_over(asleep: GrammarCompiler) -> None:
    abandoned = [asleep.compile(Grammar("regex", "a+"), "a") for _ in range(2)]
    wanted = [asleep.compile(Grammar("regex", "b+"), "a") for _ in range(2)]
    for each in (*abandoned, wanted[0]):
        each.abandoned = True
    job = asleep._next()
    assert job is not None and job.callers == wanted
    assert list(asleep._jobs) == [job.source]


def test_many_who_ask_for_the_same_are_one_job(asleep: GrammarCompiler) -> None:
    asked = [asleep.compile(Grammar("regex", "a+"), "greedy") for _ in range(200)]
    assert {reason(each) for each in asked} == {None}
    job = asleep._next()
    assert job is not None and job.callers == asked
    job.finish(Rejected("invalid_grammar", "grammar", "why"))
    assert {reason(each) for each in asked} == {"invalid_grammar"}


def test_too_much_memory_is_refused_and_a_lost_process_is_busy_once(compiler: GrammarCompiler) -> None:
    assert settle(compiler.compile(Grammar("regex", "a+"), "")).outcome() == Opened()
    names = ",".join(f'"p{number}":{{}}' for number in range(3000))
    large = Grammar("json_schema", f'{{"type":"object","properties":{{{names}}}}}')
    refused = settle(compiler.compile(large, "")).outcome()
    assert isinstance(refused, Rejected)
    assert (refused.reason, refused.detail) == ("invalid_grammar", "needs too much memory to compile")
    process = compiler._trial._process
    assert process is not None and process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert reason(settle(compiler.compile(Grammar("regex", "b+"), ""))) == "busy"
    assert settle(compiler.compile(Grammar("regex", "b+"), "")).outcome() == Opened()
    # What was known needs no process.
    assert compiler.compile(Grammar("regex", "a+"), "").outcome() == Opened()
