"""Waiting for the first of several things, and reading a stream until told to stop. Knows no message."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from headrace_kit.lifecycle import cancel_and_wait

T = TypeVar("T")
_END = object()


async def any_of(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Returns when one of the events is set, or after ``timeout`` seconds."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)


async def until(stop: asyncio.Event, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Items of a stream until it ends or ``stop`` is set, whatever the peer sends or does not send then."""
    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    pending: asyncio.Future[Any] = stopping
    try:
        while True:
            pending = asyncio.ensure_future(anext(items, _END))
            await asyncio.wait({pending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not pending.done() or pending.result() is _END:
                return
            yield pending.result()
    finally:
        stopping.cancel()
        pending.cancel()
        await asyncio.gather(stopping, pending, return_exceptions=True)
