"""The only place that names xgrammar: it is imported when first needed, which takes seconds, and need not be there.

Compiling is done twice (compile_trial.py says why); both times by `compile_source`.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace_worker.execution.grammar_source import MAX_WHITESPACE, Source

if TYPE_CHECKING:
    import xgrammar

    Compiler: TypeAlias = xgrammar.GrammarCompiler
    Compiled: TypeAlias = xgrammar.CompiledGrammar

_MAX_DETAIL_CHARS = 300
# "[12:34:56] /project/cpp/regex_converter.cc:83: " and "Check failed: (error.empty()) is false: "
_PLACE = re.compile(r"^(?:\[[\d:]+\] )?\S+\.(?:cc|h):\d+: (?:Check failed: \(.*?\) is false: )?", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """Bytes per id of the model's vocabulary (empty: no text), and the ids that end a text."""

    token_bytes: list[bytes]
    end_token_ids: tuple[int, ...]


def is_installed() -> bool:
    """Whether grammars can be compiled here at all; imports nothing."""
    return importlib.util.find_spec("xgrammar") is not None


def make_compiler(vocabulary: Vocabulary) -> Compiler:
    """One thread, no cache of its own: who calls it bounds both."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        vocabulary.token_bytes,
        xgrammar.VocabType.RAW,
        vocab_size=len(vocabulary.token_bytes),
        stop_token_ids=list(vocabulary.end_token_ids),
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_source(compiler: Compiler, source: Source) -> Compiled:
    """Raises RuntimeError for a source that does not compile; `explain` makes a sentence of it."""
    match source.language:
        case "json_schema":
            return compiler.compile_json_schema(source.text, max_whitespace_cnt=MAX_WHITESPACE)
        case "regex":
            return compiler.compile_regex(source.text)
        case "ebnf":
            return compiler.compile_grammar(source.text)


def explain(error: Exception) -> str:
    """The compiler's message without the place in its own source, and no longer than a person reads."""
    text = _PLACE.sub("", str(error)).strip() or type(error).__name__
    if isinstance(error, MemoryError) or "bad_alloc" in text:
        return "needs too much memory to compile"
    return text if len(text) <= _MAX_DETAIL_CHARS else text[:_MAX_DETAIL_CHARS] + "..."
