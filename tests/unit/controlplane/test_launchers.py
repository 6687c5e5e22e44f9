"""Several launchers behind one port: each replica is with the one that its pool names, also when that changes."""

from dataclasses import replace

from headrace_controlplane.launcher.base import LaunchSpec
from headrace_controlplane.launcher.several import Launchers
from tests.unit.controlplane.fakes import FakeLauncher

SPEC = LaunchSpec("p-0", "p", "m", "digest", ("true",), 1.0)
ON_RAY = replace(SPEC, replica_id="q-0", launcher="ray")


def test_each_replica_has_its_launcher() -> None:
    process, ray = FakeLauncher(), FakeLauncher()
    both = Launchers({"process": process, "ray": ray})
    both.start(SPEC)
    both.start(ON_RAY)
    assert (process.starts, ray.starts) == (["p-0"], ["q-0"])
    assert {seen.spec.replica_id for seen in both.observe()} == {"p-0", "q-0"}
    both.stop("q-0")
    assert ray.replicas["q-0"].stopping and not process.replicas["p-0"].stopping
    ray.die("q-0")
    both.forget("q-0")
    assert ray.replicas == {}


def test_what_an_earlier_control_plane_started_is_found_by_looking() -> None:
    process, ray = FakeLauncher(), FakeLauncher()
    Launchers({"process": process, "ray": ray}).start(ON_RAY)
    later = Launchers({"process": process, "ray": ray})
    later.observe()
    later.stop("q-0")
    assert ray.replicas["q-0"].stopping


def test_a_dead_one_that_moves_leaves_nothing_behind() -> None:
    process, ray = FakeLauncher(), FakeLauncher()
    both = Launchers({"process": process, "ray": ray})
    both.start(SPEC)
    process.die("p-0")
    both.start(replace(SPEC, launcher="ray"))
    assert process.replicas == {}
    assert [seen.spec.launcher for seen in both.observe()] == ["ray"]
