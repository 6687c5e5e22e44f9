"""Sampling: vectorised over the batch, and equal to what each row would get alone by the plain definition."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headrace_worker.execution.random_stream import uniform
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.sampler import Sampler
from headrace_worker.execution.sampling_filter import filter_logits
from headrace_worker.scheduling.plan import ResultRow
from headrace_worker.scheduling.request import Request, SamplingParams

VOCAB = 32
END = 2
INF = math.inf


def sampler(*params: SamplingParams, prompt: tuple[int, ...] = (1,), n: int = 1) -> Sampler:
    made = Sampler(VOCAB, frozenset({END}), torch.device("cpu"))
    for index, each in enumerate(params):
        made.admit(Request(10 * index, f"r{index}", 1, prompt, 8, n, each))
    return made


def logits(seed: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draw(params: SamplingParams, row: Tensor, index: int = 0) -> ResultRow:
    (result,) = sampler(params).sample(row, [0], [index])
    return result


def token(result: ResultRow) -> int:
    assert result.error is None
    (token_id,) = result.token_ids
    return token_id


GREEDY = SamplingParams(temperature=0)


def test_greedy_is_the_top_token() -> None:
    assert token(draw(GREEDY, logits(3))) == int(logits(3).argmax())


@pytest.mark.parametrize(
    "same_as_greedy", [{"top_p": 0.0}, {"top_k": 1}, {"temperature": 5e-324}, {"temperature": sys.float_info.min}]
)
def test_what_leaves_only_the_top_token(same_as_greedy: dict[str, Any]) -> None:
    for seed in range(20):
        assert token(draw(SamplingParams(**same_as_greedy), logits(seed))) == int(logits(seed).argmax())


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-5, 1.0, 1e6])
def test_no_temperature_overflows(temperature: float) -> None:
    row = torch.full((1, VOCAB), -3e38)
    row[0, 7] = 3e38
    assert token(draw(SamplingParams(temperature=temperature), row)) == 7


def test_a_greedy_row_with_masked_ids_beside_a_sampled_one() -> None:
    """B106."""
    both = sampler(SamplingParams(temperature=0, banned_ids=frozenset({5})), SamplingParams(temperature=0.7, seed=1))
    batch = logits(1, 2)
    batch[0, 5] = 50.0
    masked = batch[0].clone()
    masked[5] = -INF
    first, second = both.sample(batch.clone(), [0, 10], [0, 0])
    assert token(first) == int(masked.argmax())
    assert token(second) == token(draw(SamplingParams(temperature=0.7, seed=1), batch[1:]))


@pytest.mark.parametrize(
    ("poison", "reason"), [(-INF, "no_valid_token"), (math.nan, "engine_error"), (INF, "engine_error")]
)
def test_a_broken_row_fails_alone(poison: float, reason: str) -> None:
    params = [SamplingParams(temperature=0.7, seed=seed, top_p=0.9, logprobs=True) for seed in range(3)]
    batch = logits(4, 3)
    alone = [sampler(params[row]).sample(batch[row : row + 1].clone(), [0], [0])[0] for row in (0, 2)]
    batch[1] = poison
    first, broken, third = sampler(*params).sample(batch, [0, 10, 20], [0, 0, 0])
    assert (broken.error, broken.token_ids) == (reason, ())
    assert [first.token_ids, third.token_ids] == [each.token_ids for each in alone]


def test_one_nan_among_good_logits_is_an_error() -> None:
    row = logits(0)
    row[0, 3] = math.nan
    assert draw(GREEDY, row).error == "engine_error"


def test_allowed_ids_that_are_banned_too_leave_no_token() -> None:
    params = SamplingParams(allowed_ids=frozenset({4}), banned_ids=frozenset({4}))
    assert draw(params, logits(0)).error == "no_valid_token"


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    """B103: the stream is keyed by seed, output index and choice."""
    mine = SamplingParams(temperature=0.8, seed=42)
    rows = [logits(100 + index) for index in range(16)]
    alone = [token(draw(mine, row, index)) for index, row in enumerate(rows)]
    for others in (SamplingParams(), SamplingParams(seed=7, top_p=0.5), SamplingParams(temperature=0)):
        for slot in (0, 2, 4):
            batch = [others] * 5
            batch[slot] = mine
            made = sampler(*batch)
            handles = [10 * index for index in range(5)]
            for index, row in enumerate(rows):
                whole = torch.cat([logits(7 * other + index) for other in range(5)])
                whole[slot] = row[0]
                assert token(made.sample(whole, handles, [index] * 5)[slot]) == alone[index]


def test_choices_of_one_seed_differ_and_repeat() -> None:
    runs = []
    for _ in range(2):
        made = sampler(SamplingParams(seed=9), n=2)
        flat = torch.zeros(2, VOCAB)
        runs.append([tuple(token(each) for each in made.sample(flat.clone(), [0, 1], [i, i])) for i in range(12)])
    assert runs[0] == runs[1]
    assert [first for first, _ in runs[0]] != [second for _, second in runs[0]]


def test_without_a_seed_two_requests_differ() -> None:
    flat = torch.zeros(2, VOCAB)
    made = sampler(SamplingParams(), SamplingParams())
    drawn = [[token(each) for each in made.sample(flat.clone(), [0, 10], [i, i])] for i in range(20)]
    assert any(first != second for first, second in drawn)


def test_draws_follow_the_distribution() -> None:
    row = torch.full((1, VOCAB), -INF)
    row[0, :3] = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = [0] * VOCAB
    for seed in range(4000):
        counts[token(draw(SamplingParams(seed=seed), row.clone()))] += 1
    assert sum(counts[3:]) == 0
    assert [count / 4000 for count in counts[:3]] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20), st.integers(0, 127))
def test_uniform_numbers_lie_in_the_unit_interval(seed: int, index: int, choice: int) -> None:
    assert 0 <= uniform(seed, index, choice) < 1


def reference_filter(row: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The ids that stay, straight from the definitions."""
    order = sorted(range(len(row)), key=lambda index: -row[index])
    kept = order[:top_k] if top_k else order
    kept = [index for index in order if row[index] >= row[kept[-1]]]
    weights = {index: math.exp(row[index] - row[order[0]]) for index in kept}
    total = sum(weights.values())
    mass, nucleus = 0.0, []
    for index in kept:
        nucleus.append(index)
        mass += weights[index] / total
        if mass >= top_p:
            break
    if top_p >= 1:
        nucleus = kept
    return {index for index in nucleus if weights[index] >= min_p}


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.integers(0, VOCAB + 1),
            st.floats(0.01, 1.0),
            st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_filters_keep_what_the_definitions_keep(rows: list[tuple[int, int, float, float]]) -> None:
    batch = torch.cat([logits(seed) for seed, *_ in rows])
    kept = filter_logits(
        batch.clone(),
        torch.tensor([top_k for _, top_k, _, _ in rows]),
        torch.tensor([top_p for _, _, top_p, _ in rows], dtype=torch.float64),
        torch.tensor([min_p for *_, min_p in rows]),
    )
    for row, (_, top_k, top_p, min_p) in enumerate(rows):
        expected = reference_filter(batch[row].double().tolist(), top_k, top_p, min_p)
        assert set((kept[row] > -INF).nonzero()[:, 0].tolist()) == expected


@given(top_p=st.floats(0.01, 0.999), spread=st.sampled_from([0.0, 1e-4, 1e-3]), seed=st.integers(0, 5))
def test_a_nucleus_wider_than_the_first_look_is_found_too(top_p: float, spread: float, seed: int) -> None:
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(seed))
    scaled = -order[None].float() * spread
    nothing = torch.tensor([0.0])
    kept = filter_logits(scaled.clone(), torch.tensor([0]), torch.tensor([top_p]).double(), nothing)
    falling = scaled[0].softmax(0).sort(descending=True).values.double()
    num_needed = int((falling.cumsum(0) - falling < top_p).sum())
    num_kept = int((kept > -INF).sum())
    if spread:
        assert abs(num_kept - num_needed) <= 1  # sums in another order may differ in their last bit
        assert set((kept[0] > -INF).nonzero()[:, 0].tolist()) == set((order < num_kept).nonzero()[:, 0].tolist())
    else:
        assert num_kept == 3000  # all are equal: none can be dropped rather than another


def test_penalties_follow_their_definitions() -> None:
    params = SamplingParams(
        temperature=0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logprobs=True
    )
    made = sampler(params, prompt=(3, 4))
    row = torch.zeros(1, VOCAB)
    row[0, 3], row[0, 4], row[0, 5], row[0, 6] = 8.0, -1.0, 5.0, 4.4
    expected = []
    output: list[int] = []
    for index in range(12):
        edited = row[0].tolist()
        for seen in {3, 4, *output}:
            edited[seen] = edited[seen] / 2 if edited[seen] > 0 else edited[seen] * 2
        for seen in set(output):
            edited[seen] -= 0.5 + 0.25 * output.count(seen)
        output.append(max(range(VOCAB), key=lambda token_id: edited[token_id]))
        expected.append(token(made.sample(row.clone(), [0], [index])[0]))
    assert expected == output
    assert len(set(output)) > 2


def test_bias_moves_a_token_and_ends_wait_for_the_minimum() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, END], row[0, 9] = 9.0, 8.0
    assert token(draw(SamplingParams(temperature=0, logit_bias={7: 100.0}), row.clone())) == 7
    waiting = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=frozenset({9}))
    made = sampler(waiting)
    drawn = [token(made.sample(row.clone(), [0], [index])[0]) for index in range(3)]
    assert drawn[2] == END and not {END, 9} & set(drawn[:2])


def test_logprobs_are_the_models_own() -> None:
    params = SamplingParams(temperature=0, logprobs=True, num_logprobs=3, logit_bias={11: 100.0})
    row = logits(5)
    (entry,) = draw(params, row.clone()).logprobs or ()
    assert isinstance(entry, TokenLogprob)
    expected = row.log_softmax(1)[0]
    assert entry.token_id == 11
    assert entry.logprob == pytest.approx(float(expected[11]))
    assert [value for _, value in entry.top] == pytest.approx(expected.topk(3).values.tolist())
    assert [token_id for token_id, _ in entry.top] == expected.topk(3).indices.tolist()
