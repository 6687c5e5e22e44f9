"""Where a replica's group goes: within a fast-link domain, or nowhere, with the numbers; across only when forced."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.placement import Domain, Host, Placed, Refused, Shape, all_reduce_s, place


def host(*frees: Sequence[int], name: str = "h", size: int = 4, fast: float = 450.0, slow: float = 25.0) -> Host:
    """Domains of ``size`` devices, numbered on, with these of their devices free."""
    domains = [
        Domain(f"d{i}", tuple(range(i * size, (i + 1) * size)), tuple(i * size + at for at in free))
        for i, free in enumerate(frees)
    ]
    return Host(name, tuple(domains), fast, slow)


ALL = range(4)


def test_a_tensor_group_is_within_one_domain() -> None:
    assert place(Shape(4), [host([0, 1, 2], ALL)]) == Placed("h", ((4, 5, 6, 7),))


def test_one_that_would_span_domains_is_refused_with_the_numbers() -> None:
    refused = place(Shape(4), [host([0, 1], [1, 2, 3])])
    assert isinstance(refused, Refused)
    assert refused.reason == (
        "no fast-link domain has room for a tensor group of 4 (h/d0: 2 of 4 free, h/d1: 3 of 4 free); across domains "
        "an all-reduce of 1 MiB over 4 devices takes 63 us instead of 3 (25 GB/s instead of 450), twice a layer: "
        "span_domains places it all the same"
    )


def test_when_forced_it_is_placed_and_says_what_that_costs() -> None:
    placed = place(Shape(4, span=True), [host([0, 1], [1, 2, 3])])
    assert isinstance(placed, Placed)
    assert placed.stages == ((5, 6, 7, 0),)
    assert "63 us instead of 3" in placed.cost


def test_force_does_not_span_where_it_need_not() -> None:
    assert place(Shape(4, span=True), [host([0, 1], ALL)]) == Placed("h", ((4, 5, 6, 7),))


def test_links_that_were_not_measured_are_not_invented() -> None:
    refused = place(Shape(4), [host([0, 1], [0, 1], slow=0.0)])
    assert isinstance(refused, Refused)
    assert "was not measured" in refused.reason


def test_stages_of_a_pipeline_may_lie_in_different_domains() -> None:
    assert place(Shape(2, 3), [host([0, 1, 3], ALL)]) == Placed("h", ((4, 5), (6, 7), (0, 1)))
    assert place(Shape(2, 2), [host([0, 1, 3], ALL)]) == Placed("h", ((4, 5), (6, 7)))


def test_a_group_is_on_one_host() -> None:
    refused = place(Shape(8, span=True), [host(ALL, name="a"), host(ALL, name="b")])
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("8 devices on one host are wanted, and 4 are free on the roomiest")


def test_the_tightest_room_is_taken() -> None:
    assert place(Shape(2), [host(ALL, name="a"), host([0, 1, 2], [2, 3], name="b")]) == Placed("b", ((6, 7),))


def test_without_devices_there_is_no_place() -> None:
    assert place(Shape(1), []) == Refused(
        "1 devices on one host are wanted, and 0 are free on the roomiest (no devices)"
    )


@pytest.mark.parametrize(("num_devices", "seconds"), [(1, 0.0), (2, 1e-3), (4, 1.5e-3)])
def test_a_ring_sends_all_but_its_own_part_twice(num_devices: int, seconds: float) -> None:
    assert all_reduce_s(10**9, num_devices, 1000.0) == pytest.approx(seconds)


_frees = st.lists(st.sets(st.integers(0, 3)).map(sorted), min_size=1, max_size=3)


@given(st.lists(_frees, max_size=3), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_what_is_placed_is_free_whole_and_within_domains_unless_forced(
    frees: list[list[list[int]]], tp: int, pp: int, span: bool
) -> None:
    hosts = [host(*each, name=f"h{i}") for i, each in enumerate(frees)]
    placed = place(Shape(tp, pp, span), hosts)
    rooms = {each.name: each for each in hosts}
    if isinstance(placed, Refused):
        assert not any(sum(len(d.free) // tp for d in each.domains) >= pp for each in hosts), placed.reason
        assert not span or all(each.num_free < tp * pp for each in hosts)
        return
    taken = [device for stage in placed.stages for device in stage]
    domains = rooms[placed.host].domains
    assert [len(stage) for stage in placed.stages] == [tp] * pp
    assert len(set(taken)) == tp * pp
    assert set(taken) <= {device for domain in domains for device in domain.free}
    spans = any(not any(set(stage) <= set(domain.devices) for domain in domains) for stage in placed.stages)
    assert spans == bool(placed.cost)
    assert span or not spans
