"""An open loop: what is due is sent, however long what was sent before takes."""

import asyncio

from headrace_bench.load import Due, Progress, drive
from headrace_bench.outcome import Outcome


async def test_nothing_waits_for_what_was_sent_before() -> None:
    everything_is_sent = asyncio.Event()
    progress = Progress()

    async def send(what: int, outcome: Outcome, start_s: float) -> None:
        if progress.num_sent == 20:
            everything_is_sent.set()
        outcome.num_output = what
        await everything_is_sent.wait()

    dues = [Due(0.001 * number, number, "m", number) for number in range(20)]
    async with asyncio.timeout(10):
        sending = asyncio.create_task(drive(dues, send, progress))
        while progress.num_sent < 20:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.001)
        everything_is_sent.set()
        run = await sending
    assert [one.num_output for one in run.outcomes] == list(range(20))
    assert (progress.num_ended, progress.num_running, run.cut_short) == (20, 0, False)


async def test_a_request_is_sent_no_sooner_than_it_is_due() -> None:
    now = 0.0

    async def send(what: None, outcome: Outcome, start_s: float) -> None:
        outcome.sent_s = clock() - start_s

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    run = await drive([Due(0.0, 0, "m", None), Due(0.02, 1, "m", None)], send, Progress(), clock)
    assert len(run.outcomes) == 2


async def test_an_interrupt_keeps_what_has_ended() -> None:
    progress = Progress()

    async def send(what: bool, outcome: Outcome, start_s: float) -> None:
        if not what:
            await asyncio.Event().wait()

    sending = asyncio.create_task(drive([Due(0.0, 0, "m", True), Due(0.0, 1, "m", False)], send, progress))
    async with asyncio.timeout(10):
        while progress.num_ended < 1 or progress.num_sent < 2:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.001)
        sending.cancel()
        run = await sending
    assert ([one.number for one in run.outcomes], run.cut_short) == ([0], True)
