"""B161: a new snapshot neither refills a level nor forgets that a limit has changed. Against a real Redis.

The limit is one of a day, so that what leaks meanwhile is less than a request.
"""

from collections.abc import Callable

from tests.unit.policy.fakes import limit, section
from tests.unit.policy.office import Office

TOKENS = 58
"""Of each request: 8 of prompt and 50 of output."""


async def admitted(calls: Office, name: str, most: int) -> int:
    """How many requests of ``most`` are let in."""
    answers = [await calls.admit(f"{name}-{i}") for i in range(most)]
    assert {answer.reason for answer in answers if not answer.admitted} <= {"tokens_per_day"}
    return sum(answer.admitted for answer in answers)


async def test_an_unrelated_reload_keeps_what_was_used(office: Callable[..., Office]) -> None:
    ten = limit("tokens_per_day", 10 * TOKENS)
    calls = office(ten)
    assert await admitted(calls, "before", 9) == 9
    calls.shelf.apply(section(ten, limit("concurrency", 100)))
    assert await admitted(calls, "after", 3) == 1


async def test_a_raised_limit_leaves_what_is_raised(office: Callable[..., Office]) -> None:
    calls = office(limit("tokens_per_day", 10 * TOKENS))
    assert await admitted(calls, "before", 11) == 10
    calls.shelf.apply(section(limit("tokens_per_day", 20 * TOKENS)))
    assert await admitted(calls, "after", 12) == 10


async def test_a_lowered_limit_lets_nothing_in_until_it_leaked(office: Callable[..., Office]) -> None:
    calls = office(limit("tokens_per_day", 10 * TOKENS))
    assert await admitted(calls, "before", 8) == 8
    calls.shelf.apply(section(limit("tokens_per_day", 5 * TOKENS)))
    assert await admitted(calls, "after", 2) == 0
