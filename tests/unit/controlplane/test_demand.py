"""The demand board: loads are means of a window per router, summed over routers that speak."""

from headrace.v1 import fleet_pb2
from headrace_controlplane.demand import FRESH_S, DemandBoard, ModelLoad


def report(router: str, tokens: int = 0, interval_ms: int = 1000, **facts: int) -> fleet_pb2.DemandReport:
    rows = [fleet_pb2.ModelDemand(model="m", num_prompt_tokens=tokens, **facts)] if tokens or facts else []
    return fleet_pb2.DemandReport(router_id=router, interval_ms=interval_ms, models=rows)


def test_the_load_is_the_mean_of_the_window_over_all_routers() -> None:
    now = [0.0]
    board = DemandBoard(lambda: now[0])
    for second in range(30):
        now[0] = float(second)
        board.note(report("a", 100 * (second % 2), num_arrivals=second % 2, num_output_bound_tokens=50 * (second % 2)))
        board.note(report("b", 30, num_arrivals=1))
    load = board.load("m")
    assert abs(load.tokens_per_s - 105) < 10
    assert abs(load.arrivals_per_s - 1.5) < 0.1


def test_a_longer_interval_weighs_as_long() -> None:
    board = DemandBoard(lambda: 0.0)
    board.note(report("a", 400, interval_ms=4000))
    assert board.load("m").tokens_per_s == 100


def test_what_is_held_is_that_of_the_last_reports() -> None:
    now = [0.0]
    board = DemandBoard(lambda: now[0])
    board.note(report("a", num_held=7, oldest_held_ms=9000))
    now[0] = 1.0
    board.note(report("a", num_held=2, oldest_held_ms=500))
    board.note(report("b", num_held=3, oldest_held_ms=1500))
    load = board.load("m")
    assert (load.num_held, load.oldest_held_s) == (5, 1.5)


def test_silence_is_no_load_and_not_zero() -> None:
    now = [0.0]
    board = DemandBoard(lambda: now[0])
    assert (board.last_at, board.fresh()) == (None, [])
    board.note(report("a"))
    assert (board.load("m"), len(board.fresh())) == (ModelLoad(), 1)
    now[0] = FRESH_S
    assert (board.last_at, board.fresh()) == (0.0, [])


def test_a_pool_is_as_the_router_sees_it_that_sees_most() -> None:
    board = DemandBoard(lambda: 0.0)
    for router, count in (("a", 1), ("b", 3), ("c", 2)):
        pools = [fleet_pb2.PoolLoad(pool="p", num_replicas=count)]
        board.note(fleet_pb2.DemandReport(router_id=router, pools=pools))
    seen = board.pool("p")
    assert seen is not None and seen.num_replicas == 3
    assert board.pool("other") is None
