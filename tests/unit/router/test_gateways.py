"""Who is gone for how long: called so without a break, by every answer, and never heard of meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_router.gateways import ORPHAN_S, Gateways

ASKED = {"g"}


def waiting() -> Gateways:
    gateways = Gateways()
    gateways.add("g", "d1")
    return gateways


def test_the_orphan_time_of_one_that_is_gone_ends_once_it_was_called_so_for_all_of_it() -> None:
    gateways = waiting()
    assert gateways.told(ASKED, {"g"}, 100.0) == []
    assert gateways.told(ASKED, {"g"}, 100.0 + ORPHAN_S - 0.1) == []
    assert gateways.told(ASKED, {"g"}, 100.0 + ORPHAN_S) == ["g"]


def test_one_that_reported_everything_is_asked_about_no_more() -> None:
    gateways = waiting()
    gateways.add("g", "d2")
    gateways.told(ASKED, {"g"}, 0.0)
    gateways.discard("g", "d1")
    assert (gateways.waiting(), gateways.decisions("g")) == (["g"], ["d2"])
    gateways.discard("g", "d2")
    gateways.discard("g", "d2")
    assert (gateways.waiting(), gateways.decisions("g")) == ([], [])
    gateways.add("g", "d3")
    assert gateways.told(ASKED, {"g"}, ORPHAN_S) == [], "what it was called before was about what is over"


def test_one_without_a_name_is_not_asked_about() -> None:
    """A gateway of the version before says none: an hour, as it was."""
    gateways = Gateways()
    gateways.add("", "d1")
    gateways.discard("", "d1")
    assert gateways.waiting() == []


EVENTS = st.lists(st.tuples(st.sampled_from(["gone", "alive", "heard", "silence"]), st.floats(0, 10)), max_size=40)


@given(EVENTS)
def test_anything_that_says_that_it_lives_begins_its_time_anew(events: list[tuple[str, float]]) -> None:
    gateways, now = waiting(), 0.0
    called_gone: list[float] = []
    for kind, wait_s in events:
        now += wait_s
        if kind == "gone":
            called_gone.append(now)
            is_over = now - called_gone[0] >= ORPHAN_S
            assert gateways.told(ASKED, {"g"}, now) == (["g"] if is_over else [])
        elif kind == "alive":
            assert gateways.told(ASKED, set(), now) == []
        elif kind == "heard":
            gateways.heard("g")
        if kind in ("alive", "heard"):
            called_gone.clear()
