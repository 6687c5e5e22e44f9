"""What a tenant used is told by whichever policies answer, each limit once."""

import asyncio

from headrace.v1 import policy_pb2 as pb
from headrace_controlplane.levels_of_all import Answer, levels_of_all
from headrace_kit.errors import HeadraceError

Level = tuple[str, str, float]


async def told(*levels: Level) -> Answer:
    rows = [pb.QuotaLevel(limit=limit, scope=scope, level=level, capacity=10) for limit, scope, level in levels]
    return pb.QuotaReport(levels=rows)


async def refused(reason: str) -> Answer:
    return HeadraceError(reason, "as told")


async def silent() -> Answer:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def test_one_answer_is_enough_and_says_how_many_were_asked() -> None:
    answer = await levels_of_all([silent(), told(("rpm", "tenant", 3.0)), refused("policy_unavailable")], 0.01)
    assert isinstance(answer, pb.QuotaReport)
    assert [(one.limit, one.level) for one in answer.levels] == [("rpm", 3.0)]
    assert (answer.num_asked, answer.num_answered) == (3, 1)


async def test_each_limit_is_there_once_with_the_models_that_any_of_them_has_seen() -> None:
    first = told(("rpm", "tenant", 3.0), ("tpm", "model:a", 1.0))
    answer = await levels_of_all([first, told(("rpm", "tenant", 3.0), ("tpm", "model:b", 2.0))], 30.0)
    assert isinstance(answer, pb.QuotaReport)
    assert [(one.limit, one.scope) for one in answer.levels] == [
        ("rpm", "tenant"),
        ("tpm", "model:a"),
        ("tpm", "model:b"),
    ]
    assert answer.num_answered == 2


async def test_if_nobody_can_tell_the_answer_is_what_the_caller_can_change() -> None:
    answer = await levels_of_all([refused("policy_unavailable"), refused("invalid_argument")], 0.01)
    assert isinstance(answer, HeadraceError) and answer.reason == "invalid_argument"
