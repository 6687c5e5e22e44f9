"""Whole hand-offs between two schedulers: outputs are those of one replica, and both books balance whatever is aborted.

The machines on paper read every row's context back, so a page that was given away too early shows as a wrong token.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.worker.scheduling.fakes import Driver, expected_tokens, make_limits

from .paper import Pair


def run(pair: Pair, max_steps: int = 4000) -> None:
    """Everything travels at once."""
    for _ in range(max_steps):
        pair.step()
        for transfer in pair.transfers:
            while transfer.ready:
                transfer.begin(transfer.ready.pop(0))
            while transfer.writing:
                transfer.finish()
        pair.settle()
        pair.check()
        if pair.is_idle:
            return
    raise AssertionError("not idle")


@pytest.mark.parametrize("num_prompt", [18, 31, 32, 33, 47, 48, 49, 130, 400])
@pytest.mark.parametrize("n", [1, 3])
def test_a_handed_off_prompt_draws_what_one_replica_draws(num_prompt: int, n: int) -> None:
    pair = Pair()
    outcome = pair.submit(num_prompt, 5, n=n)
    run(pair)
    for choice in range(n):
        assert outcome.tokens[choice] == expected_tokens(outcome, choice)
    computed = sum(len(row.token_ids) for plan in pair.target.plans for row in plan.rows if row.start < num_prompt)
    num_pages = -(-(num_prompt - 1) // 16)
    assert computed == (1 if num_pages >= 2 else num_prompt)


@pytest.mark.parametrize(("num_prompt", "num_pages"), [(31, 2), (32, 2), (33, 2), (34, 3)])
def test_as_many_pages_travel_as_all_but_the_last_token_fill(num_prompt: int, num_pages: int) -> None:
    pair = Pair()
    pair.submit(num_prompt, 4)
    pair.step()
    assert [len(transfer.wanted.pages) for transfer in pair.transfers] == [num_pages]


@pytest.mark.parametrize("num_prompt", [2, 16, 17])
def test_below_two_pages_nothing_is_handed_off(num_prompt: int) -> None:
    pair = Pair()
    outcome = pair.submit(num_prompt, 4)
    run(pair)
    assert outcome.tokens[0] == expected_tokens(outcome, 0)
    assert not pair.source.outcomes


def test_a_prefix_that_is_there_is_not_pulled_again_and_received_pages_are_hit_by_others() -> None:
    pair = Pair()
    prompt = [(at * 7) % 256 for at in range(100)]
    pair.submit(prompt, 3)
    run(pair)
    longer = [*prompt[:96], *[(at * 11) % 256 for at in range(100)]]
    outcome = pair.submit(longer, 3)
    pair.step()
    (transfer,) = pair.transfers
    assert (transfer.wanted.first_page, len(transfer.wanted.pages)) == (6, 7)
    run(pair)
    assert outcome.accepted is not None
    assert outcome.accepted.cached_tokens == 96
    assert outcome.tokens[0] == expected_tokens(outcome, 0)
    # The prefill side had them too, and sent only what was asked for.
    assert transfer.outcome.accepted is not None
    assert transfer.outcome.accepted.cached_tokens == 96


def test_a_prompt_that_the_prefill_side_has_whole_is_sent_at_once() -> None:
    pair = Pair()
    prompt = [(at * 3) % 256 for at in range(97)]
    run_alone = pair.source.submit(prompt[:96], 2)
    pair.source.run()
    assert run_alone.is_over
    outcome = pair.submit(prompt, 3)
    run(pair)
    assert outcome.tokens[0] == expected_tokens(outcome, 0)


@pytest.mark.parametrize("seed", range(4))
def test_many_hand_offs_with_random_aborts_leave_both_books_balanced(seed: int) -> None:
    """Four times 250: reads last a while, either side aborts at any time, silence falls, pools are small."""
    draw = random.Random(seed)
    pair = Pair(num_pages=40, max_sequence_tokens=300)
    outcomes = []
    for number in range(250):
        prompt = [draw.randrange(256) for _ in range(draw.choice([20, 33, 48, 65, 120]))]
        if number % 3 == 0:
            prompt[:32] = [7] * 32
        outcomes.append(pair.submit(prompt, draw.randint(1, 6), queue_deadline_s=None))
        for _ in range(draw.randint(1, 4)):
            move(pair, draw)
    for _ in range(4000):
        move(pair, draw)
        if pair.is_idle:
            break
    assert pair.is_idle
    for side in (pair.source, pair.target):
        pool = side.scheduler.pool
        assert pool.num_free + pool.num_cached == pool.num_pages
        assert side.scheduler.hand_offs.num_open == 0
    completed = [each for each in outcomes if each.finished and each.finished[0].kind != "cancelled" and each.tokens[0]]
    assert len(completed) > 50
    for outcome in completed:
        assert outcome.tokens[0] == expected_tokens(outcome, 0)[: len(outcome.tokens[0])]
    aborted = [each for each in outcomes if each.finished and each.finished[0].reason in ("prefill_lost", "kv_expired")]
    assert aborted


def move(pair: Pair, draw: random.Random) -> None:
    """One turn in which anything can happen."""
    pair.step()
    for transfer in pair.transfers:
        if transfer.ready and draw.random() < 0.7:
            transfer.begin(transfer.ready.pop(0))
        if transfer.writing and draw.random() < 0.6:
            transfer.finish()
        fate = draw.random()
        if fate < 0.02:
            transfer.lease.abort("prefill_lost", pair.source.now)
        elif fate < 0.04:
            transfer.pull.abort("kv_expired")
        elif fate < 0.06:
            pair.target.cancel(pair.target.by_handle[transfer.wanted.handle])
            transfer.pull.abort("client")
        elif fate > 0.5:
            transfer.pull.hear(pair.target.now)
    pair.settle()
    pair.check()


def test_pages_of_an_aborted_hand_off_are_not_given_out_before_its_write_has_ended() -> None:
    """A is aborted at half, B is admitted at once, A's write comes late: B's output is as if A had never been."""
    pair = Pair(num_pages=8, max_sequence_tokens=128)
    first = pair.submit(100, 4)
    while not (pair.transfers and pair.transfers[0].ready):
        pair.step()
    (transfer,) = pair.transfers
    transfer.begin(transfer.ready.pop(0))
    pair.target.cancel(first)
    transfer.pull.abort("client")
    pair.settle()
    second = pair.target.submit([9] * 60, 4)
    for _ in range(20):
        pair.target.step()
        pair.target.check()
    assert pair.target.scheduler.pool.num_quarantined == 7
    assert second.accepted is None
    transfer.finish()
    assert transfer.pull.num_late == 1
    run(pair)
    assert second.tokens[0] == expected_tokens(second, 0)


def test_source_pages_stay_until_the_ack_though_their_request_is_over() -> None:
    pair = Pair(num_pages=8, max_sequence_tokens=128)
    pair.submit(100, 4)
    for _ in range(6):
        pair.step()
    (transfer,) = pair.transfers
    assert transfer.outcome.is_over
    assert pair.source.scheduler.pool.num_quarantined == 7
    intruder = pair.source.submit([5] * 60, 4)
    pair.source.step()
    assert intruder.accepted is None
    run(pair)
    assert intruder.tokens[0] == expected_tokens(intruder, 0)


def test_one_replica_alone_is_not_changed_by_what_it_could_do() -> None:
    alone = Driver(make_limits())
    outcome = alone.submit(100, 4)
    alone.run()
    assert outcome.tokens[0] == expected_tokens(outcome, 0)
    assert all(not plan.exports and not plan.imports for plan in alone.plans)
