"""Placement: a tensor group stays within one fast-link domain, and nothing is taken that is not free."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.placement import Domain, Placement, Refusal, Share, place


def domains(*free: int) -> list[Domain]:
    return [Domain(f"d{index}", f"n{index // 2}", count) for index, count in enumerate(free)]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_a_placement_takes_what_is_free_and_a_refusal_means_that_it_is_not(
    free: list[int], tensor: int, pipeline: int, span: bool
) -> None:
    found = place(domains(*free), tensor, pipeline, span=span)
    if isinstance(found, Refusal):
        whole_groups = sum(count // tensor for count in free)
        assert whole_groups < pipeline, "there was a domain for every group"
        assert not span or sum(free) < tensor * pipeline
        return
    taken: Counter[str] = Counter()
    for shares in found.stages:
        assert sum(share.num_devices for share in shares) == tensor
        taken.update({share.domain: share.num_devices for share in shares})
    assert all(count <= free[int(name[1:])] for name, count in taken.items())
    assert len(found.stages) == pipeline
    assert span or not found.spans


def test_the_tightest_domain_is_used_first() -> None:
    assert place(domains(8, 4, 6), 4) == Placement(((Share("d1", 4),),))


def test_stages_stay_on_one_node_where_they_can() -> None:
    found = place(domains(4, 4, 4, 4), 4, 2)
    assert found == Placement(((Share("d0", 4),), (Share("d1", 4),)))


def test_a_group_across_domains_is_refused_with_its_cost_unless_forced() -> None:
    refused = place(domains(4, 4), 8)
    assert isinstance(refused, Refusal)
    assert refused.slowdown == 9.0
    assert "about 9.0 times as long" in refused.detail
    forced = place(domains(4, 4), 8, span=True)
    assert forced == Placement(((Share("d0", 4), Share("d1", 4)),), 9.0)


def test_too_few_devices_are_said_with_both_numbers() -> None:
    assert place(domains(3), 4) == Refusal("4 devices are needed and 3 are free, 0 of 1 stages placed")
