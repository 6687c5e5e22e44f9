"""Drawing and penalties against their twins, under the interpreter."""

from array import array

import pytest
import torch

from headrace_worker.execution.random_stream import draw_key
from headrace_worker.execution.row_draws import KernelDraws, RowDraws, TorchDraws
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.sampler import Sampler
from headrace_worker.execution.sampling_filter import filter_logits
from headrace_worker.kernels.draw import DrawParams, draw, draw_twin, gumbel_twin, philox_words
from headrace_worker.kernels.penalties import SeenTokens, penalise, penalise_twin
from headrace_worker.scheduling.plan import ResultRow
from headrace_worker.scheduling.request import Request, SamplingParams


def params(rows: list[int], filters: list[tuple[int, float, float, float]], salt: int = 0) -> DrawParams:
    """Filters are (top_k, temperature, top_p, min_p); the key of a row depends on its number alone."""
    top_k, temperature, top_p, min_p = (list(column) for column in zip(*filters, strict=True))
    return DrawParams(
        torch.tensor(rows),
        torch.tensor([draw_key(row + salt, 0, 0) for row in rows]),
        torch.tensor(top_k, dtype=torch.int32),
        *(torch.tensor(each, dtype=torch.float32) for each in (temperature, top_p, min_p)),
    )


FILTERS = [
    (0, 1.0, 1.0, 0.0), (5, 1.0, 1.0, 0.0), (0, 0.7, 0.9, 0.0), (50, 1.3, 0.5, 0.0), (0, 2.0, 1.0, 0.1),
    (1, 1.0, 1.0, 0.0), (0, 1e-30, 1.0, 0.0), (900, 5.0, 0.99, 0.01),
]  # fmt: skip


def logits(num_rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(num_rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    made[0, : vocabulary // 2] = -torch.inf
    return made


@pytest.mark.parametrize("vocabulary", [7, 1025])
def test_the_kernel_draws_what_its_twin_draws(vocabulary: int) -> None:
    filters = [(min(k, vocabulary), t, p, m) for k, t, p, m in FILTERS]
    scores = logits(len(FILTERS), vocabulary)
    given = params(list(range(len(FILTERS))), filters)
    assert draw(scores, given).tolist() == draw_twin(scores, given).tolist()


def test_a_row_draws_the_same_alone_as_in_a_batch() -> None:
    scores = logits(len(FILTERS), 600)
    together = draw(scores, params([5, 2, 7, 0], [FILTERS[row] for row in (5, 2, 7, 0)])).tolist()
    assert together == [int(draw(scores, params([row], [FILTERS[row]]))[0]) for row in (5, 2, 7, 0)]


def test_a_row_without_a_valid_token_draws_something_of_the_vocabulary() -> None:
    scores = torch.full((1, 50), -torch.inf)
    assert 0 <= int(draw(scores, params([0], [(3, 1.0, 0.9, 0.1)]))[0]) < 50


def test_the_twin_keeps_what_the_filters_of_the_cpu_sampler_keep() -> None:
    """Over many keys no token outside that set is drawn, and every likely one within it is."""
    scores = logits(2, 40, seed=3)[1:]
    for top_k, temperature, top_p, min_p in [(7, 1.0, 0.8, 0.0), (0, 1.5, 0.6, 0.05), (0, 1.0, 1.0, 0.3)]:
        kept = filter_logits(
            scores / temperature,
            torch.tensor([top_k]),
            torch.tensor([top_p], dtype=torch.float64),
            torch.tensor([min_p]),
        )[0].isfinite()
        drawn = {
            int(draw_twin(scores, params([0], [(top_k, temperature, top_p, min_p)], salt))[0]) for salt in range(400)
        }
        shares = (scores[0] / temperature).masked_fill(~kept, -torch.inf).softmax(0)
        assert drawn <= set(kept.nonzero()[:, 0].tolist())
        assert drawn >= set((shares > 0.03).nonzero()[:, 0].tolist())


def test_draws_follow_the_softmax() -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    num_draws = 20_000
    keys = torch.tensor([draw_key(7, index, 0) for index in range(num_draws)])
    drawn = (scores + gumbel_twin(keys, 4)).argmax(1)
    shares = torch.bincount(drawn, minlength=4) / num_draws
    torch.testing.assert_close(shares, scores[0].softmax(0), atol=0.012, rtol=0)


def test_philox_is_the_published_one() -> None:
    """Known answers of Random123 for philox4x32-10: an all-zero key and counter."""
    assert philox_words(torch.tensor([0]), 1).tolist() == [[0x6627E8D5]]


def test_penalties() -> None:
    seen = SeenTokens.of(
        [(0, {3: 0, 4: 2}, (1.3, 0.5, 0.25)), (2, {token: token % 3 for token in range(300)}, (0.8, -0.5, 0.1))],
        torch.device("cpu"),
    )
    got, wanted = logits(3, 400).nan_to_num(neginf=-5.0), logits(3, 400).nan_to_num(neginf=-5.0)
    penalise(got, seen)
    penalise_twin(wanted, seen)
    torch.testing.assert_close(got, wanted)
    assert not torch.equal(got[2], logits(3, 400)[2]) and torch.equal(got[1], logits(3, 400)[1])


def test_the_sampler_edits_and_reports_by_kernels_as_by_torch() -> None:
    """Greedy rows with penalties, log-probabilities: the same; a seed gives its tokens in any batch."""
    params_of = [
        SamplingParams(temperature=0.0, repetition_penalty=1.5, logprobs=True, num_logprobs=2),
        SamplingParams(temperature=0.0, frequency_penalty=0.7, presence_penalty=0.2, logit_bias={5: 3.0}),
        SamplingParams(temperature=0.9, top_p=0.8, seed=3, logprobs=True, num_logprobs=1),
    ]
    scores = logits(3, 60)

    def results(draws: RowDraws, rows: list[int]) -> list[list[ResultRow]]:
        sampler = Sampler(60, frozenset({2}), torch.device("cpu"), draws)
        for row in rows:
            sampler.admit(Request(row, f"r{row}", 1, array("I", [1, 40, 41]), 4, 1, params_of[row]))
        return [sampler.sample(scores[rows].clone(), rows, [index] * len(rows)) for index in range(3)]

    by_kernels, by_torch = results(KernelDraws(), [0, 1, 2]), results(TorchDraws(), [0, 1, 2])
    for step, twin in zip(by_kernels, by_torch, strict=True):
        assert [row.token_ids for row in step[:2]] == [row.token_ids for row in twin[:2]]
        got, wanted = (row.logprobs[0] if row.logprobs else None for row in (step[0], twin[0]))
        assert isinstance(got, TokenLogprob) and isinstance(wanted, TokenLogprob)
        assert got.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        assert [token for token, _ in got.top] == [token for token, _ in wanted.top]
    assert [step[0] for step in results(KernelDraws(), [2])] == [step[2] for step in by_kernels]
