"""Whatever the model would write: what a grammar lets it write is in the grammar, and a bad grammar harms nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.matcher import Matcher
from headrace_worker.execution.token_mask import num_words
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.request import Grammar
from tests.unit.worker.execution.grammar_bench import (
    AMBIGUOUS,
    END,
    ENDLESS,
    SPACES,
    TEXTS,
    VOCABULARY,
    GrammarBench,
    load_tiny,
    make_grammars,
    settle,
    text_of,
)

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "[a-z]{1,6}"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
    }
)


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = make_grammars()
    yield made
    made.shut()


@pytest.fixture(scope="module")
def runner(grammars: Grammars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchRunner]:
    before = torch.get_num_threads()
    yield load_tiny(tmp_path_factory.mktemp("tiny"), grammars)
    torch.set_num_threads(before)


@pytest.fixture
def bench(runner: TorchRunner, grammars: Grammars) -> Iterator[GrammarBench]:
    yield GrammarBench(runner)
    # What has ended is told to the runner with the next plan, which may never come.
    grammars.release(list(grammars._matchers))
    assert grammars._compilations == {}


def assert_valid(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "age", "tags"}
    assert re.fullmatch("[a-z]{1,6}", value["name"]) and 0 <= value["age"] <= 120
    assert len(value["tags"]) <= 2 and set(value["tags"]) <= {"a", "bc"}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_a_schema_is_kept_by_every_choice(bench: GrammarBench, temperature: float) -> None:
    handle = bench.constrain("json_schema", SCHEMA, n=3, temperature=temperature, seed=11, banned_ids=SPACES)
    bench.run()
    texts = [bench.text(handle + choice) for choice in range(3)]
    for choice, text in enumerate(texts):
        assert bench.finished(handle + choice).reason == "stop"
        assert_valid(text)
    assert len(set(texts)) == (1 if temperature == 0 else 3)


def test_any_object_and_nothing_but_an_object(bench: GrammarBench) -> None:
    handles = [bench.constrain("json_object", "", temperature=1.0, seed=seed, max_output=240) for seed in range(6)]
    bench.run()
    ended = [handle for handle in handles if bench.finished(handle).reason == "stop"]
    assert all(isinstance(json.loads(bench.text(handle)), dict) for handle in ended)
    assert all(bench.text(handle).startswith("{") for handle in handles)
    assert ended


def test_one_of_the_choices(bench: GrammarBench) -> None:
    choices = ["abc", "ab", 'q"\\}', "x y\n"]
    handles = [
        bench.constrain("choice", json.dumps(choices), temperature=2.0, seed=seed, max_output=20) for seed in range(12)
    ]
    bench.run()
    drawn = {bench.text(handle) for handle in handles}
    assert drawn <= set(choices) and len(drawn) > 1
    assert {bench.finished(handle).reason for handle in handles} == {"stop"}


def test_the_whole_text_matches_the_expression(bench: GrammarBench) -> None:
    handle = bench.constrain("regex", r"[a-c]{2}-\d{3,4}", n=4, temperature=1.5, seed=1)
    bench.run()
    texts = [bench.text(handle + choice) for choice in range(4)]
    assert all(re.fullmatch(r"[a-c]{2}-\d{3,4}", text) for text in texts), texts


def test_a_grammar_of_its_own(bench: GrammarBench) -> None:
    handle = bench.constrain(
        "grammar", 'root ::= sum\nsum ::= num | "[" sum "," sum "]"\nnum ::= [0-9]', max_output=240
    )
    bench.run()
    text = bench.text(handle)
    assert bench.finished(handle).reason in ("stop", "length")
    assert re.fullmatch(r"[0-9\[\],]+", text)
    assert bench.finished(handle).reason == "length" or json.loads(text) is not None


def test_a_whole_text_ends_the_choice_without_an_end_token(bench: GrammarBench) -> None:
    """Even where end tokens end nothing, or may not be drawn yet, and although the output limit is reached, too."""
    for extra in ({"ignore_eos": True}, {"min_tokens": 15}, {"banned_ids": frozenset({END})}):
        handle = bench.constrain("choice", '["qz"]', max_output=20, **extra)
        bench.run()
        assert (bench.text(handle), bench.finished(handle).reason) == ("qz", "stop")
    handle = bench.constrain("choice", '["qz"]', max_output=2)
    bench.run()
    assert (bench.text(handle), bench.finished(handle).reason) == ("qz", "stop")


def test_an_output_limit_ends_it_in_the_middle(bench: GrammarBench) -> None:
    handle = bench.constrain("regex", "[a-z]{10,}", max_output=4)
    bench.run()
    assert (len(bench.text(handle)), bench.finished(handle).reason) == (4, "length")


def test_neighbours_are_not_changed(bench: GrammarBench) -> None:
    free = bench.submit([5, 9, 30, 7], 30)
    bench.run()
    alone = bench.constrain("json_schema", SCHEMA, temperature=1.0, seed=4, banned_ids=SPACES)
    bench.run()
    again = bench.submit([5, 9, 30, 7], 30)
    beside = bench.constrain("json_schema", SCHEMA, temperature=1.0, seed=4, banned_ids=SPACES)
    others = [bench.constrain("regex", "[a-z]{9}", temperature=1.0, seed=seed) for seed in range(3)]
    bench.run()
    assert bench.ids(again) == bench.ids(free)
    assert bench.ids(beside) == bench.ids(alone)
    assert all(re.fullmatch("[a-z]{9}", bench.text(handle)) for handle in others)


def test_logprobs_are_the_models_own(bench: GrammarBench) -> None:
    handle = bench.constrain("choice", '["zz"]', logprobs=True, num_logprobs=2)
    bench.run()
    entries = bench.logprobs(handle)
    assert [TEXTS[entry.token_id] for entry in entries] == [b"z", b"z"]
    assert all(entry.logprob < 0 and len(entry.top) == 2 for entry in entries)


BAD: list[tuple[str, str, str]] = [
    ("json_schema", '{"type": "wibble"}', "wibble"),
    ("json_schema", '{"type"', "JSON"),
    ("json_schema", '{"$ref": "#/$defs/a"}', "$defs"),
    ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("regex", "(a", "parenthesis"),
    ("regex", "(" * 60_000, "parenthesis"),
    ("regex", "(" * 20_000 + "a" + ")" * 20_000, "Nest"),
    ("grammar", "root := ", "Unexpected"),
    ("grammar", 'foo ::= "a"', "root"),
    ("choice", "[]", "choices"),
    ("poem", "a", "kind"),
]


def test_a_bad_grammar_is_refused_alone(bench: GrammarBench) -> None:
    good = bench.constrain("json_schema", SCHEMA, temperature=1.0, seed=4, banned_ids=SPACES)
    free = bench.submit([5, 9, 30, 7], 30)
    handles = [(word, bench.constrain(kind, text)) for kind, text, word in BAD]
    bench.run()
    for word, handle in handles:
        refused = bench.refused(handle)
        assert (refused.reason, refused.field) == ("invalid_grammar", "grammar")
        assert word in refused.detail and len(refused.detail) < 400
        assert "/project/" not in refused.detail and ".cc:" not in refused.detail
    assert_valid(bench.text(good))
    assert len(bench.ids(free)) == 30


def test_others_go_on_while_an_endless_one_is_compiled(bench: GrammarBench) -> None:
    endless = bench.constrain("json_schema", ENDLESS)
    for _ in range(3):
        free = bench.submit([5, 9, 30, 7], 8)
        while not bench.has_ended(free):
            bench.step()
        assert len(bench.ids(free)) == 8
    assert not bench.has_ended(endless)
    bench.run()
    assert bench.refused(endless).reason == "invalid_grammar"
    assert "seconds to compile" in bench.refused(endless).detail
    # What it came to is remembered: the same again costs nothing.
    again = bench.constrain("json_schema", ENDLESS)
    bench.step()
    assert bench.refused(again).detail == bench.refused(endless).detail


def test_a_cancel_does_not_wait_for_the_compiler(bench: GrammarBench) -> None:
    handle = bench.constrain("json_schema", ENDLESS + " ")
    bench.step()
    assert bench.engine.has_work and bench.engine.wait_s() is not None
    bench.engine.cancel(Cancel(f"r{handle}", reason="disconnect"))
    bench.step()
    assert bench.refused(handle).reason == "disconnect"
    assert not bench.engine.has_work


def test_the_queue_deadline_does_not_wait_for_the_compiler_either(bench: GrammarBench) -> None:
    handle = bench.constrain("json_schema", ENDLESS + "  ", queue_deadline_s=0.0)
    bench.step()
    assert (bench.refused(handle).reason, bench.refused(handle).retry_after_s) == ("queue_deadline", 1.0)


def test_masks_and_bans_that_leave_nothing_fail_alone(bench: GrammarBench) -> None:
    bad = bench.constrain("choice", '["q"]', banned_ids=frozenset({TEXTS.index(b"q")}))
    good = bench.constrain("choice", '["q"]')
    bench.run()
    assert bench.finished(bad).reason == "no_valid_token"
    assert bench.text(good) == "q"


def test_one_whose_matching_costs_too_much_fails_alone(bench: GrammarBench) -> None:
    bad = bench.constrain("regex", AMBIGUOUS)
    good = bench.constrain("regex", "[a-y]{20}")
    bench.run()
    assert bench.finished(bad).reason == "engine_error"
    assert re.fullmatch("[a-y]{20}", bench.text(good))


def test_one_whose_mask_never_comes_fails_alone(
    runner: TorchRunner, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = Grammars(VOCABULARY, grammars._compiler, mask_wait_s=0.2)
    monkeypatch.setattr(runner, "_grammars", hasty)
    bench = GrammarBench(runner)
    bad = bench.constrain("regex", "[a-z]{20}")
    good = bench.constrain("regex", "[a-y]{20}")
    while len(bench.ids(bad)) < 3:
        bench.step()
    never: Future[None] = Future()
    hasty._matchers[bad].masked = never
    bench.run()
    assert (bench.finished(bad).reason, len(bench.ids(bad))) == ("engine_error", 3)
    assert re.fullmatch("[a-y]{20}", bench.text(good))
    hasty._pool.shutdown()


WALKED: list[tuple[str, str]] = [
    ("json_schema", SCHEMA),
    ("json_object", ""),
    ("regex", r"(ab|a)*[0-9]{0,3}\.?"),
    ("grammar", 'root ::= "a" root "b" | "a" "b" | "{" root "}"'),
    ("choice", '["a", "ab", "abc", "true"]'),
]


@pytest.fixture(scope="module")
def compiled(grammars: Grammars) -> list[Any]:
    return [settle(grammars._compiler.compile(Grammar(*pair), "")).compiled for pair in WALKED]


@given(number=st.integers(0, len(WALKED) - 1), walk=st.lists(st.integers(0, 10**6), max_size=25))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_what_the_mask_allows_is_accepted(compiled: list[Any], number: int, walk: list[int]) -> None:
    """Every prefix that the mask allows is accepted; every id that it forbids is not; whole texts may end."""
    matcher = Matcher(compiled[number], num_words(len(TEXTS)))
    text: list[int] = []
    for draw in walk:
        matcher._fill()
        bits = [bool(matcher.mask_W[i // 32] >> (i % 32) & 1) for i in range(len(TEXTS))]
        allowed = [i for i, bit in enumerate(bits) if bit]
        assert bits[END] == matcher.may_end
        assert all(TEXTS[i] for i in allowed if i != END), "an id without a text is allowed"
        forbidden = [i for i, bit in enumerate(bits) if not bit]
        assert not matcher.accept(forbidden[draw % len(forbidden)])
        token_id = allowed[draw % len(allowed)]
        assert matcher.accept(token_id), f"{text_of(text)!r} then {TEXTS[token_id]!r}"
        text.append(token_id)
        if token_id == END:
            assert matcher.has_ended
            return


def test_overlapped_too_and_choices_without_one_do_not_wait(
    runner: TorchRunner, grammars: Grammars, tmp_path: Path
) -> None:
    drawn = []
    for each in (runner, load_tiny(tmp_path, grammars, overlap="on")):
        bench = GrammarBench(each)
        constrained = bench.constrain("regex", "[a-f]{9}[0-9]{3}", seed=4, temperature=1.0)
        free = bench.submit([3, 10, 17, 24], 30)
        bench.run()
        drawn.append((bench.text(constrained), bench.ids(free)))
        assert re.fullmatch("[a-f]{9}[0-9]{3}", bench.text(constrained))
        assert bench.finished(constrained).reason == "stop"
    assert drawn[0] == drawn[1]
