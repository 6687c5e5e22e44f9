"""The log of page events: gapless from any number it still has, and honest about what is gone."""

from __future__ import annotations

import asyncio

from headrace_worker.messages import Command, ListPages, PageList
from headrace_worker.scheduling.page_events import PageChange, PageEvent, PageEventBatch, PageKey
from headrace_worker.watch import PageLog


def batch(epoch: int, *seqs: int, lost: bool = False) -> PageEventBatch:
    return PageEventBatch(epoch, tuple(PageEvent(s, PageChange.STORED, PageKey(b"c", bytes([s]))) for s in seqs), lost)


def seqs(log: PageLog, since: int) -> list[int] | None:
    events = log.since(since)
    return None if events is None else [event.seq for event in events]


def make() -> tuple[PageLog, list[Command]]:
    sent: list[Command] = []
    return PageLog(sent.append), sent


def test_events_are_read_from_any_number_on() -> None:
    log, _ = make()
    log.extend(batch(1, 0, 1, 2))
    log.extend(batch(1, 3))
    assert [seqs(log, 0), seqs(log, 2), seqs(log, 4)] == [[0, 1, 2, 3], [2, 3], []]


def test_what_was_lost_is_said_to_be_gone() -> None:
    log, _ = make()
    log.extend(batch(1, 0, 1))
    log.extend(batch(1, 70, 71, lost=True))
    assert (seqs(log, 1), seqs(log, 70)) == (None, [70, 71])


def test_a_new_epoch_begins_anew() -> None:
    log, _ = make()
    log.extend(batch(1, 0, 1, 2, 3))
    log.extend(batch(2, 0))
    assert (seqs(log, 0), log.epoch) == ([0], 2)


async def test_events_that_a_list_already_holds_are_not_repeated() -> None:
    log, sent = make()
    log.extend(batch(1, 0, 1))
    listing = asyncio.create_task(log.list_pages())
    await asyncio.sleep(0)
    assert sent == [ListPages()]
    log.note_list(PageList(2, 3, ()))
    pages = await listing
    log.extend(batch(2, 0, 1, 2, 3))
    assert seqs(log, pages.next_seq) == [3]


async def test_a_list_ahead_of_its_events_waits_for_them() -> None:
    log, _ = make()
    log.extend(batch(1, 0, 1))
    log.note_list(PageList(1, 4, ()))
    assert seqs(log, 4) == []
    log.extend(batch(1, 2, 3, 4))
    assert seqs(log, 4) == [4]
