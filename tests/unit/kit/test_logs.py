import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace_kit import logs


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def started(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], Callable[[], list[dict[str, Any]]]]]:
    """Sets the logs up when called, and returns a reader of the lines so far."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def start() -> Callable[[], list[dict[str, Any]]]:
        root.handlers = []  # or setup would close the handlers of pytest
        logs.setup("gateway", "i1", "info")
        return lambda: lines(capsys.readouterr().err)

    yield start
    root.handlers = before
    root.setLevel(level)


log = logging.getLogger("headrace_test")


def test_a_line_says_who_what_and_when(started: Any) -> None:
    stderr = started()
    logs.set_process_fields(snapshot_version=7)
    log.debug("hidden")
    log.info("routed", extra={"replica": "r1", "score": 0.5, "hit": True, "names": ("a", 1), "none": None})
    (line,) = stderr()
    assert isinstance(line.pop("ts"), float)
    assert line == {
        "level": "info",
        "service": "gateway",
        "instance": "i1",
        "snapshot_version": 7,
        "event": "routed",
        "replica": "r1",
        "score": 0.5,
        "hit": True,
        "names": ["a", 1],
        "none": None,
    }


async def test_bound_fields_follow_the_context_and_its_tasks_only(started: Any) -> None:
    stderr = started()

    async def work(response_id: str) -> None:
        with logs.bind(response_id=response_id):
            await asyncio.sleep(0)
            with logs.bind(attempt=2):
                await asyncio.create_task(tell())

    async def tell() -> None:
        log.info("told")

    await asyncio.gather(work("a"), work("b"))
    log.info("after")
    *told, after = stderr()
    assert sorted((line["response_id"], line["attempt"]) for line in told) == [("a", 2), ("b", 2)]
    assert "response_id" not in after


def test_an_exception_is_one_field_of_one_line(started: Any) -> None:
    stderr = started()
    try:
        raise RuntimeError("line one\nwith hr_k_secret in it")
    except RuntimeError:
        log.exception("crashed")
    (line,) = stderr()
    assert "RuntimeError: line one\nwith hr_k_*** in it" in line["exception"]


def test_credentials_are_masked_wherever_they_stand(started: Any) -> None:
    stderr = started()
    log.info(
        "call %s",
        "?key=s3cret",
        extra={
            "url": "http://h?api_key=s3cret",
            "headers": {"authorization": "s3cret", "X": ["Bearer s3cret-token"]},
            "token": "s3cret",
            "error": ValueError("hr_a_s3cret"),
        },
    )
    assert "s3cret" not in json.dumps(stderr())


def test_values_that_are_not_json_still_give_json(started: Any) -> None:
    stderr = started()
    log.info("odd", extra={"nan": float("nan"), "inf": float("-inf"), "bytes": b"\xff", "text": "\ud800é\n"})
    (line,) = stderr()
    assert (line["nan"], line["inf"], line["text"]) == ("nan", "-inf", "\ud800é\n")
