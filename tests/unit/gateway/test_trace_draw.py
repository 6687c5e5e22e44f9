"""Of ordinary traces a share is kept, and not too many a second."""

from headrace_gateway.trace_draw import TraceDraw
from headrace_kit.tracing import root


def test_the_share_is_kept_and_all_gateways_agree() -> None:
    first, second = TraceDraw(0.25, 1e9), TraceDraw(0.25, 1e9)
    ids = [root().trace_id for _ in range(2000)]
    drawn = [first.draw(each, False, float(at)) for at, each in enumerate(ids)]
    assert 400 < sum(drawn) < 600
    assert drawn == [second.draw(each, False, float(at)) for at, each in enumerate(ids)]


def test_none_and_all() -> None:
    assert not any(TraceDraw(0.0, 1e9).draw(root().trace_id, False, 0.0) for _ in range(100))
    assert all(TraceDraw(1.0, 1e9).draw(root().trace_id, False, 0.0) for _ in range(100))


def test_a_client_that_wishes_it_is_drawn_within_the_rate() -> None:
    draw = TraceDraw(0.0, 1.0)
    assert [draw.draw(root().trace_id, True, 0.0) for _ in range(5)] == [True] + [False] * 4


def test_the_rate_is_kept_over_time() -> None:
    draw = TraceDraw(1.0, 2.0)
    num = sum(draw.draw(root().trace_id, False, at / 100) for at in range(10_000))
    assert 2 * 100 <= num <= 2 * 100 + 2


def test_less_than_one_a_second_is_one_now_and_then_and_none_is_none() -> None:
    draw = TraceDraw(1.0, 0.125)
    assert [at for at in range(40) if draw.draw(root().trace_id, False, float(at))] == [0, 8, 16, 24, 32]
    assert not any(TraceDraw(1.0, 0.0).draw(root().trace_id, True, float(at)) for at in range(100))
