"""From what should be and what is to what is to be done; and that repeated, it ends where it should."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.reconcile import Forget, Observed, PoolTarget, Start, Stop, reconcile

OLD, NEW = "old", "new"


def target(num_replicas: int = 1, digest: str = NEW, surge: int = 1) -> PoolTarget:
    return PoolTarget("cpu", num_replicas, digest, surge)


def seen(index: int, digest: str = NEW, **facts: object) -> Observed:
    return replace(Observed(f"cpu-{index}", "cpu", digest, ready=True), **facts)  # type: ignore[arg-type]


def test_what_is_missing_is_started() -> None:
    assert reconcile([target(2)], [], 0.0) == [Start("cpu-0", "cpu"), Start("cpu-1", "cpu")]


def test_what_is_right_is_left_alone() -> None:
    assert reconcile([target(2)], [seen(0), seen(1)], 0.0) == []


def test_a_dead_replica_is_started_again_under_its_id_after_its_back_off() -> None:
    dead = seen(0, alive=False, ready=False, restart_at=5.0)
    assert reconcile([target()], [dead], 4.9) == []
    assert reconcile([target()], [dead], 5.0) == [Start("cpu-0", "cpu")]


def test_of_too_many_the_one_that_does_not_serve_yet_goes_first() -> None:
    """B152: scaling down drops the loading one."""
    actions = reconcile([target(2)], [seen(0, ready=False), seen(1), seen(2)], 0.0)
    assert actions == [Stop("cpu-0")]


def test_a_pool_that_left_the_file_is_stopped_and_then_forgotten() -> None:
    assert reconcile([], [seen(0)], 0.0) == [Stop("cpu-0")]
    assert reconcile([], [seen(0, alive=False, stopping=True)], 0.0) == [Forget("cpu-0")]


def test_a_replica_that_is_leaving_is_replaced_under_another_id() -> None:
    assert reconcile([target()], [seen(0, stopping=True)], 0.0) == [Start("cpu-1", "cpu")]


def test_a_changed_pool_starts_the_new_before_it_stops_the_old() -> None:
    old = seen(0, OLD)
    assert reconcile([target()], [old], 0.0) == [Start("cpu-1", "cpu")]
    assert reconcile([target()], [old, seen(1, ready=False)], 0.0) == []
    assert reconcile([target()], [old, seen(1)], 0.0) == [Stop("cpu-0")]


def test_without_surge_one_old_replica_makes_room_at_a_time() -> None:
    olds = [seen(0, OLD), seen(1, OLD)]
    assert reconcile([target(2, surge=0)], olds, 0.0) == [Stop("cpu-0")]
    left = [replace(olds[0], stopping=True), olds[1]]
    assert reconcile([target(2, surge=0)], left, 0.0) == [Start("cpu-2", "cpu")]
    assert reconcile([target(2, surge=0)], [olds[1], seen(2, ready=False)], 0.0) == []
    assert reconcile([target(2, surge=0)], [olds[1], seen(2)], 0.0) == [Stop("cpu-1")]


def test_an_old_replica_that_does_not_serve_is_of_no_use() -> None:
    assert Stop("cpu-0") in reconcile([target()], [seen(0, OLD, ready=False)], 0.0)


@given(
    st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.booleans(), st.booleans()), max_size=6),
    st.integers(0, 4),
    st.integers(0, 2),
)
def test_repeated_it_converges_and_never_serves_with_fewer_than_it_can(
    start: list[tuple[str, bool, bool]], num_replicas: int, surge: int
) -> None:
    """Each round: actions are carried out, then everything that starts becomes ready and everything that stops ends."""
    want = target(num_replicas, surge=surge)
    state = {
        f"cpu-{i}": seen(i, digest, alive=alive, ready=alive and ready)
        for i, (digest, alive, ready) in enumerate(start)
    }
    for _ in range(40):
        serving = sum(each.ready and not each.stopping for each in state.values())
        actions = reconcile([want], list(state.values()), 0.0)
        for action in actions:
            match action:
                case Start(name, pool):
                    assert name not in state or not state[name].alive, "two processes of one replica"
                    state[name] = Observed(name, pool, want.digest)
                case Stop(name):
                    assert state[name].alive
                    state[name] = replace(state[name], stopping=True)
                case Forget(name):
                    assert not state.pop(name).alive
        still = sum(each.ready and not each.stopping for each in state.values())
        assert still >= min(serving, num_replicas) - (surge == 0)
        alive = sum(each.alive and not each.stopping for each in state.values())
        assert alive <= max(num_replicas + surge, len(start))
        if not actions and all(each.ready for each in state.values()):
            break
        state = {
            name: replace(each, alive=False) if each.stopping else replace(each, ready=each.alive)
            for name, each in state.items()
        }
    assert [each.digest for each in state.values()] == [NEW] * num_replicas
