"""Verbs whose work is done by a command of another distribution, in its own process.

Their words are handed over as they are, so that flags, errors and output have one owner each. The distribution may be
missing: a host that runs no worker plans no card.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from headrace_cli.platform.state_dir import CommandError


@dataclass(frozen=True)
class PassedOn:
    """`headrace VERB WORDS…` is `python -m MODULE COMMAND… WORDS…`."""

    help: str
    module: str
    command: tuple[str, ...] = ()
    distribution: str = "headrace-worker"


PASSED_ON = {
    "plan": PassedOn("what a model, a card and a layout need and can do", "headrace_worker.perf", ("plan",)),
    "simulate": PassedOn("run a fleet on a virtual clock", "headrace_sim", (), "headrace-sim"),
    "bench": PassedOn("open-loop load on an OpenAI-style server", "headrace_bench", (), "headrace-bench"),
    "replay": PassedOn("run a recording of the scheduler's inputs again", "headrace_worker.scheduling", ("replay",)),
    "policy": PassedOn("check a safety rule file, or try it on a text", "headrace_policy.rules", (), "headrace-policy"),
}


def pass_on(verb: str, words: Sequence[str]) -> None:
    """Becomes the other command; returns only by an error. `--state-dir`, which every verb takes, is dropped."""
    target = PASSED_ON[verb]
    if importlib.util.find_spec(target.module.partition(".")[0]) is None:
        raise CommandError(f"{verb} needs the distribution {target.distribution}, which is not installed here")
    command = [sys.executable, "-m", target.module, *target.command, *_without_state_dir(words)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _without_state_dir(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--state-dir":
            next(rest, None)
        elif not word.startswith("--state-dir="):
            kept.append(word)
    return kept
