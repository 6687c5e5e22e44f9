"""A tiny random model whose 64 ids are short texts, with grammars over them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from headrace_worker.execution.grammar_backend import Vocabulary
from headrace_worker.execution.grammar_compiler import Compilation, GrammarCompiler
from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.execution.trial_limits import TrialLimits
from headrace_worker.scheduling.events import Finished, Refused
from headrace_worker.scheduling.request import Grammar, Request, SamplingParams
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.models.tiny import VOCAB_SIZE, write_tiny

END = 2
_WORDS = ["", "", "</s>", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", *'{}[]":,-. \n\\', '{"', '": ', '"a"', "true"]
TEXTS = [word.encode() for word in _WORDS] + [b""] * (VOCAB_SIZE - len(_WORDS))
VOCABULARY = Vocabulary(TEXTS, (END,))
# A good one takes milliseconds of CPU; so the bad ones of these tests need not be waited for.
LIMITS = TrialLimits(cpu_s=0.5)
SPACES = frozenset({_WORDS.index(" "), _WORDS.index("\n")})
# Short, and minutes of CPU time for the compiler.
ENDLESS = '{"items":' * 900 + "{}" + "}" * 900
# Compiles at once; every token costs the matcher more than the one before.
AMBIGUOUS = "(((a|b|.){1,1000}){1,1000}){1,1000}"


def make_grammars(**settings: Any) -> Grammars:
    return Grammars(VOCABULARY, GrammarCompiler(VOCABULARY, LIMITS), **settings)


def load_tiny(folder: Path, grammars: Grammars, **settings: Any) -> TorchRunner:
    """Bit for bit the same, whatever else is in the batch."""
    runner = load(write_tiny(folder / "llama", "llama"), folder, deterministic=True, **settings)
    runner._grammars = grammars
    return runner


def settle(compilation: Compilation) -> Compilation:
    """Waits for the compiler's thread."""
    assert compilation.done.wait(60), "the compiler does not answer"
    return compilation


def text_of(ids: list[int]) -> str:
    return b"".join(TEXTS[token_id] for token_id in ids if token_id != END).decode()


class GrammarBench(EngineBench):
    def constrain(self, kind: str, text: str, n: int = 1, max_output: int = 200, **settings: Any) -> int:
        """A request with a grammar; the prompt depends on nothing."""
        handle, self._next = self._next, self._next + n
        fields = {name: settings.pop(name) for name in ("queue_deadline_s", "fair_key") if name in settings}
        params = SamplingParams(**({"temperature": 0.0} | settings))
        prompt = array("I", [5, 9, 30, 7])
        grammar = Grammar(kind, text)
        self.engine.submit(Request(handle, f"r{handle}", 1, prompt, max_output, n, params, grammar, **fields))
        return handle

    def text(self, handle: int) -> str:
        return text_of(self.ids(handle))

    def refused(self, handle: int) -> Refused:
        (event,) = (e for e in self.events if isinstance(e, Refused) and e.handle == handle)
        return event

    def has_ended(self, handle: int) -> bool:
        return any(isinstance(e, Finished | Refused) and e.handle == handle for e in self.events)
