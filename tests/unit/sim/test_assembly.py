"""Replicas are made as their pool says, and the section `simulation` goes before it."""

import pytest

from headrace_controlplane.autoscale import ScalePolicy
from headrace_sim.assembly import Options, make_of
from tests.unit.sim.fleets import fleet_file


@pytest.mark.parametrize(("pool", "section", "overrun"), [(0.05, 0.0, 0.05), (0.05, 0.2, 0.2), (0.0, 0.0, 0.0)])
def test_the_statistical_class_is_as_the_pool_has_it(pool: float, section: float, overrun: float) -> None:
    fleet = fleet_file({"statistical_overrun": pool}, {"pools": {"p": {"overrun": section}}})
    assert make_of(fleet.pools["p"], Options()).limits.overrun == overrun


def test_a_pool_is_scaled_as_production_scales_it() -> None:
    own = {"utilization": 0.7, "max_starting": 2, "max_down": 1, "forecast": 0, "down_after_s": 60, "capacity": 500}
    sizes = {"min": 1, "max": 8, "warm_reserve": 1}
    policy = fleet_file({**sizes, "scaling": own}).pools["p"].scale_policy
    assert policy == ScalePolicy(1, 8, 1, 0.7, 60.0, 2.0, 2, 1)
    replaced = fleet_file({**sizes, "scaling": own}, {"pools": {"p": {"scaling": {"utilization": 0.5}}}}).pools["p"]
    assert replaced.scale_policy == ScalePolicy(1, 8, 1, 0.5)
    assert fleet_file({**sizes, "scaling": {**own, "dry_run": True}}).pools["p"].scale_policy is None
    assert fleet_file({"min": 2}).pools["p"].scale_policy is None


@pytest.mark.parametrize(
    ("pool", "section", "stored"),
    [
        ({}, {}, ("bf16", "bf16")),
        ({"quantization": "fp8", "kv_precision": "fp8"}, {}, ("fp8", "fp8")),
        ({"quantization": "int4"}, {}, ("int4", "bf16")),
        ({"quantization": "int4"}, {"weights": "fp8", "kv": "fp8"}, ("fp8", "fp8")),
    ],
)
def test_what_is_stored_is_as_the_pool_has_it(
    pool: dict[str, str], section: dict[str, str], stored: tuple[str, str]
) -> None:
    roofline = fleet_file(pool, {"pools": {"p": section}}).pools["p"].roofline
    assert (roofline.weights.name, roofline.kv.name) == stored


def test_pages_are_kept_only_where_prompts_may_begin_alike() -> None:
    pool = fleet_file().pools["p"]
    for shares in (False, True):
        assert make_of(pool, Options(shares_prefixes=shares)).limits.caches_prefixes is shares
