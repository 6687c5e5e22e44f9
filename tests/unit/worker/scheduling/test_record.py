"""A recording reproduces every plan, and a changed one is noticed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headrace_worker.scheduling.__main__ import main
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.entrance import HandleInUse
from headrace_worker.scheduling.plan import ResultRow, StepResult
from headrace_worker.scheduling.record import RecordError, RecordingScheduler, replay
from headrace_worker.scheduling.request import Grammar, Request, SamplingParams
from tests.unit.worker.scheduling.fakes import END, hash_block, make_limits


class NoisyPredictor:
    """Never the same answer twice: only recorded answers can reproduce its chunks."""

    def __init__(self) -> None:
        self.chance = random.Random(5)

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        return prefill_tokens * 1e-4 * self.chance.uniform(0.5, 1.5)


def make_request(handle: int, chance: random.Random) -> Request:
    return Request(
        handle,
        f"r{handle}",
        1,
        tuple([chance.randrange(3)] * chance.randrange(1, 120)),
        chance.randrange(1, 20),
        n=chance.randrange(1, 3),
        sampling=SamplingParams(
            logit_bias={5: 1.5}, allowed_ids=frozenset({1, 2}), stop_token_ids=frozenset({9}), temperature=0.1 + 0.2
        ),
        grammar=Grammar("regex", "a*"),
        queue_deadline_s=chance.choice((None, 0.2)),
        inter_token_s=0.004,
        fair_key=chance.choice("ab"),
        chain_root=b"\x00root",
        kv_context=b"\xff",
    )


def record(num_turns: int = 150) -> list[str]:
    lines: list[str] = []
    chance = random.Random(3)
    scheduler = RecordingScheduler(make_limits(num_pages=40), hash_block, lines.append, NoisyPredictor(), epoch=7)
    now, handle = 0.0, 0
    for turn in range(num_turns):
        now += chance.uniform(0.001, 0.02)
        if turn % 3 == 0:
            scheduler.submit(make_request(handle, chance), now)
            handle += 2
        if turn % 11 == 0:
            scheduler.cancel(Cancel(f"r{chance.randrange(handle)}"))
        if turn == 70:
            scheduler.clear_cache(8)
        plan = scheduler.plan(now)
        if plan is not None:
            drawn = [(handle, chance.choice((1, 2, 3, END))) for row in plan.rows for handle in row.samples]
            whole = chance.randrange(40) == 0
            rows = tuple(ResultRow(handle, (token_id,), ("logprob",), complete=whole) for handle, token_id in drawn)
            scheduler.complete(StepResult(plan.step, rows), now)
        scheduler.take_events()
    return lines


def test_every_plan_is_reproduced() -> None:
    replayed = list(replay(record()))
    assert len(replayed) == 150
    assert all(plan.is_same for plan in replayed)
    assert sum(plan.plan is not None for plan in replayed) > 100


def test_a_changed_input_makes_another_plan() -> None:
    lines = record()
    index = next(index for index, line in enumerate(lines) if '"submit"' in line)
    entry = json.loads(lines[index])
    entry["request"]["prompt_ids"].append(1)
    lines[index] = json.dumps(entry)
    assert not all(plan.is_same for plan in replay(lines))


def test_a_changed_prediction_makes_another_plan() -> None:
    entries = [json.loads(line) for line in record()]
    for entry in entries:
        if entry.get("predictions"):
            entry["predictions"] = [9.0] * 10
    assert not all(plan.is_same for plan in replay(json.dumps(entry) for entry in entries))


def test_a_submit_that_was_refused_for_its_handle_is_replayed_as_such() -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(make_limits(), hash_block, lines.append)
    scheduler.submit(Request(0, "a", 1, (1,), 4), 0.0)
    with pytest.raises(HandleInUse):
        scheduler.submit(Request(0, "b", 1, (1,), 4), 0.0)
    scheduler.plan(0.0)
    assert [plan.is_same for plan in replay(lines)] == [True]


@pytest.mark.parametrize("bad", ["", "{", "[]", '{"kind": "plan"}', '{"kind": "dance"}', '{"kind": "complete"}'])
def test_a_line_that_is_none_is_named(bad: str) -> None:
    lines = [*record(3)[:2], bad]
    with pytest.raises(RecordError, match="line 3"):
        list(replay(lines))


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = record()
    whole = tmp_path / "whole.jsonl"
    whole.write_text("\n".join(lines))
    assert main(["replay", str(whole)]) == 0
    assert "every one as recorded" in capsys.readouterr().out
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(line.replace('"max_chunk_tokens":256', '"max_chunk_tokens":16') for line in lines))
    assert main(["replay", str(changed)]) == 1
    assert "another plan" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "absent")]) == 2


def test_an_empty_file_is_no_recording() -> None:
    with pytest.raises(RecordError, match="no recording"):
        list(replay([]))
