"""The platform without its control plane, as `make bench-routing` measures it for a whole minute."""

from benchmarks.routing_outage import RESTARTED, outage


async def test_without_a_control_plane_streams_go_on_and_every_service_starts_from_its_disk() -> None:
    seen = await outage(2.0)
    assert set(seen.endings) == {"completed"}, seen.endings
    assert seen.endings["completed"] > 16
    assert set(seen.ready_s) == set(RESTARTED)
