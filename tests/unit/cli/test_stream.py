"""The client's cursor: what is no stream of the contract is StreamBroken, whatever it looks like."""

import pytest

from headrace.v1 import inference_pb2 as pb
from headrace_cli.client import StreamBroken, StreamCursor
from headrace_kit.errors import HeadraceError


def events(*kinds: str, response_id: str = "resp_1") -> list[pb.ResponseEvent]:
    messages = []
    for number, kind in enumerate(kinds):
        message = pb.ResponseEvent(response_id=response_id, sequence_number=number)
        getattr(message, kind).SetInParent()
        messages.append(message)
    return messages


def followed(sequence: list[pb.ResponseEvent]) -> StreamCursor:
    cursor = StreamCursor()
    for event in sequence:
        cursor.accept(event)
    return cursor


@pytest.mark.parametrize("terminal", ["completed", "incomplete", "failed", "cancelled"])
def test_a_whole_stream_has_its_terminal(terminal: str) -> None:
    cursor = followed(events("created", "delta", terminal))
    cursor.end()
    assert cursor.kind == terminal and cursor.response_id == "resp_1"


@pytest.mark.parametrize(
    "kinds",
    [
        ("delta",),
        ("created", "created"),
        ("completed",),
        ("created", "completed", "delta"),
        ("created", "failed", "failed"),
    ],
)
def test_events_out_of_place_break_it(kinds: tuple[str, ...]) -> None:
    with pytest.raises(StreamBroken):
        followed(events(*kinds))


def test_a_gap_breaks_it() -> None:
    first, _, third = events("created", "delta", "delta")
    with pytest.raises(StreamBroken, match="event 2 arrived in place of 1") as broken:
        followed([first, third])
    assert broken.value.response_id == "resp_1" and broken.value.num_events == 1


def test_another_identity_breaks_it() -> None:
    first, second = events("created", "delta")
    second.response_id = "resp_2"
    with pytest.raises(StreamBroken, match="resp_2"):
        followed([first, second])


def test_no_terminal_is_no_ending() -> None:
    with pytest.raises(StreamBroken, match="no terminal"):
        followed(events("created", "delta")).end()


def test_a_status_before_created_is_a_refusal_and_after_it_a_break() -> None:
    def busy() -> HeadraceError:
        return HeadraceError("busy", "full")

    assert isinstance(StreamCursor().failure(busy), HeadraceError)
    assert isinstance(followed(events("created")).failure(busy), StreamBroken)


def test_a_failed_terminal_raises_by_name() -> None:
    event = events("created", "failed")[1]
    event.failed.reason, event.failed.message = "engine_error", "boom"
    cursor = followed([events("created")[0], event])
    with pytest.raises(HeadraceError) as failure:
        cursor.raise_for_terminal()
    assert failure.value.reason == "engine_error" and failure.value.details["response_id"] == "resp_1"
