"""Trace readers: each format becomes arrivals; shared blocks stay shared; failures are left out."""

import gzip
from pathlib import Path

import pytest

from headrace_workload.arrival import Segment
from headrace_workload.errors import WorkloadError
from headrace_workload.servegen import servegen_workload
from headrace_workload.source import open_source
from headrace_workload.traces import TraceOptions, read_trace, thin

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
9,ChatGPT,0,0,0,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}
"""
SPEC = "phases: [{for_s: 1, rps: 5}]\nmix: [{model: m, prompt: 1, output: 1, max_output: 1}]\n"
BAILIAN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 3, "turn": 1, '
    '"hash_ids": [4, 5, 6]}\n'
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, "a.csv.gz", AZURE), TraceOptions(model="fast", max_output=100))
    assert (first.at_s, first.num_prompt, first.num_output, first.max_output) == (0.0, 374, 44, 100)
    assert second.at_s == pytest.approx(4.314579)
    assert second.max_output == 109
    assert first.segments[0].seed != second.segments[0].seed


def test_burstgpt_without_its_failures(tmp_path: Path) -> None:
    arrivals = list(read_trace(written(tmp_path, "b.csv", BURSTGPT)))
    assert [(each.number, each.at_s, each.num_prompt) for each in arrivals] == [(0, 0.0, 472), (1, 40.0, 1087)]


def test_mooncake_blocks_are_segments(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, "m.jsonl", MOONCAKE))
    assert first.segments == (Segment(0, 512), Segment(1, 512), Segment(2, 6))
    assert second.segments == (Segment(0, 512), Segment(9, 88))
    assert second.at_s == 3.0


def test_bailian_has_blocks_of_sixteen_and_chats(tmp_path: Path) -> None:
    (only,) = read_trace(written(tmp_path, "q.jsonl", BAILIAN))
    assert only.segments == (Segment(4, 16), Segment(5, 16), Segment(6, 8))
    assert (only.session, only.at_s) == ("7", 1.5)


def test_a_window_of_a_trace_starts_at_zero(tmp_path: Path) -> None:
    (only,) = read_trace(written(tmp_path, "m.jsonl", MOONCAKE), TraceOptions(start_s=2.0, end_s=9.0))
    assert (only.number, only.at_s) == (0, 1.0)


def test_thinning_keeps_its_share(tmp_path: Path) -> None:
    path = written(tmp_path, "m.jsonl", MOONCAKE.splitlines(keepends=True)[0] * 4000)
    kept = list(thin(read_trace(path), 0.25, seed=1))
    assert len(kept) == pytest.approx(1000, rel=0.1)
    assert [each.number for each in kept] == list(range(len(kept)))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "x.csv", text)
    with pytest.raises(WorkloadError, match=r"x\.csv"):
        list(read_trace(path))


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="line 3"):
        list(read_trace(written(tmp_path, "m.jsonl", MOONCAKE + '{"timestamp": 1}\n')))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(5000, 9, 9), (4000, 9, 9)], "the row at 4 s: comes after one at 5 s: sort"),
        ([(-1, 9, 9)], "expected a time from 0 up"),
        ([("NaN", 9, 9)], "expected a time from 0 up"),
        ([("Infinity", 9, 9)], "expected a time from 0 up"),
        ([(1764500000000, 9, 9)], "is the first one: leave out what is before"),
        ([(0, 10**11, 9)], "has more than 10,000,000 tokens"),
        ([(0, 9, "1e400")], "line 1"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(tmp_path: Path, rows: list[tuple[object, ...]], words: str) -> None:
    lines = [f'{{"timestamp": {at}, "input_length": {asked}, "output_length": {told}}}\n' for at, asked, told in rows]
    with pytest.raises(WorkloadError, match=words):
        list(read_trace(written(tmp_path, "m.jsonl", "".join(lines))))


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b"\xff\xfe"), ("x.csv.gz", b"abc"), ("y.gz", gzip.compress(MOONCAKE.encode())[:40])],
    ids=["no text", "not compressed", "cut off"],  # what is compressed holds the time, and both workers must agree
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=f"{name}: cannot be read"):
        list(read_trace(tmp_path / name))


def test_statistics_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"m-x_total_rate.*cannot be read"):
        servegen_workload(tmp_path, "m-x", "fast", (600.0, 1800.0))


def test_a_byte_order_mark_is_no_header(tmp_path: Path) -> None:
    assert len(list(read_trace(written(tmp_path, "a.csv", "\ufeff" + AZURE)))) == 2


def test_a_trace_that_counts_from_1970_can_be_begun_there(tmp_path: Path) -> None:
    path = written(tmp_path, "m.jsonl", '{"timestamp": 1764500003000, "input_length": 9, "output_length": 9}\n')
    (only,) = read_trace(path, TraceOptions(start_s=1764500000.0))
    assert only.at_s == pytest.approx(3.0)


def test_only_a_trace_can_be_begun_later() -> None:
    with pytest.raises(WorkloadError, match="only a trace"):
        open_source("chat").arrivals(0, TraceOptions(start_s=1.0))


def test_servegen_rates_are_held_per_window(tmp_path: Path) -> None:
    rates = "model,t_s,total_rate_rps\nm-x,0,10\nm-x,600,30\nm-x,1200,20\n"
    histograms = "model,field,value_lo,value_hi,probability\n" + "".join(
        f"m-x,{field},{low},{high},0.5\n"
        for field in ("input_tokens", "output_tokens")
        for low, high in [(1, 9), (10, 99)]
    )
    written(tmp_path, "m-x_total_rate_10min.csv.gz", rates)
    written(tmp_path, "mixture_length_histograms.csv.gz", histograms)
    workload = servegen_workload(tmp_path, "m-x", "fast", (600.0, 1800.0), share=0.5)
    assert [(each.for_s, each.rps, each.to_rps) for each in workload.phases] == [(600, 15, 15), (600, 10, 10)]
    assert workload.kinds[0].prompt.quantile(0.5) == 9
    assert workload.kinds[0].prompt.quantile(0.999999) == 99


def test_a_source_is_a_preset_a_file_or_a_clear_error(tmp_path: Path) -> None:
    spec = written(
        tmp_path, "w.yaml", "phases: [{for_s: 1, rps: 5}]\nmix: [{model: m, prompt: 1, output: 1, max_output: 1}]\n"
    )
    assert open_source("chat-burst").spec is not None
    assert open_source(str(spec)).spec is not None
    assert open_source(str(written(tmp_path, "m.jsonl", MOONCAKE))).spec is None
    with pytest.raises(WorkloadError, match="chat-burst"):
        open_source(str(tmp_path / "none.yaml"))
    with pytest.raises(WorkloadError, match="cannot be read"):
        open_source(str(written(tmp_path, "bad.yaml", "a: [")))
