"""Replicas are made as their pool says, and the section `simulation` goes before it."""

import pytest

from headrace_sim.assembly import Options, make_of
from tests.unit.sim.fleets import fleet_file


@pytest.mark.parametrize(("pool", "section", "overrun"), [(0.05, 0.0, 0.05), (0.05, 0.2, 0.2), (0.0, 0.0, 0.0)])
def test_the_statistical_class_is_as_the_pool_has_it(pool: float, section: float, overrun: float) -> None:
    fleet = fleet_file({"statistical_overrun": pool}, {"pools": {"p": {"overrun": section}}})
    assert make_of(fleet.pools["p"], Options()).limits.overrun == overrun


def test_pages_are_kept_only_where_prompts_may_begin_alike() -> None:
    pool = fleet_file().pools["p"]
    for shares in (False, True):
        assert make_of(pool, Options(shares_prefixes=shares)).limits.caches_prefixes is shares
