"""What every launcher keeps to, whatever it launches with: a class of tests that each launcher's own tests inherit."""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from headrace_controlplane.launcher.base import Launched, Launcher, LaunchSpec

SLEEPER = "import time; print('awake', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('awake', flush=True); time.sleep(600)"
)


class Place(Protocol):
    """Where replicas run. Launchers that are made there come and go as control planes do."""

    limit_s: float

    def launcher(self, wall: Callable[[], float] = time.time) -> Launcher: ...
    def log(self) -> str: ...
    def crash(self) -> None: ...


def spec(code: str = SLEEPER, drain_s: float = 0.0) -> LaunchSpec:
    return LaunchSpec("cpu-0", "cpu", "m", "digest", (sys.executable, "-c", code), drain_s)


def only(launcher: Launcher) -> Launched:
    (seen,) = launcher.observe()
    return seen


def until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.01)


class LauncherContract:
    """Subclasses have a fixture ``place``; ``crash`` ends its launched process or what holds it, by force."""

    def started(self, place: Place, launcher: Launcher, what: LaunchSpec) -> Launched:
        launcher.start(what)
        until(lambda: "awake" in place.log() and only(launcher).pid != 0, place.limit_s)
        return only(launcher)

    def test_nothing_is_there_at_first(self, place: Place) -> None:
        assert place.launcher().observe() == []

    def test_one_that_was_asked_for_counts_at_once(self, place: Place) -> None:
        launcher = place.launcher()
        launcher.start(spec())
        seen = only(launcher)
        assert (seen.alive, seen.stopping, seen.spec) == (True, False, spec())

    def test_another_launcher_adopts_it(self, place: Place) -> None:
        before = self.started(place, place.launcher(), spec())
        again = place.launcher()
        assert (only(again).alive, only(again).spec) == (True, spec())
        until(lambda: only(again).pid == before.pid, place.limit_s)
        assert place.log().count("awake") == 1

    def test_death_is_seen_with_its_last_words(self, place: Place) -> None:
        launcher = place.launcher()
        launcher.start(spec("import sys; print('no such model', file=sys.stderr); sys.exit(2)"))
        until(lambda: not only(launcher).alive, place.limit_s)
        assert only(launcher).last_words == "ended with exit code 2: no such model"
        assert only(launcher).pid == 0

    def test_a_crash_is_seen_and_it_can_be_started_again(self, place: Place) -> None:
        launcher = place.launcher()
        before = self.started(place, launcher, spec())
        place.crash()
        until(lambda: not only(launcher).alive, place.limit_s)
        launcher.start(spec())
        assert only(launcher).alive
        until(lambda: only(launcher).pid not in (0, before.pid), place.limit_s)
        until(lambda: place.log().count("awake") == 2, place.limit_s)

    def test_stop_is_remembered_and_what_is_forgotten_is_gone(self, place: Place) -> None:
        launcher = place.launcher()
        self.started(place, launcher, spec())
        launcher.stop("cpu-0")
        assert only(launcher).stopping
        until(lambda: not only(launcher).alive, place.limit_s)
        assert only(place.launcher()).stopping
        launcher.forget("cpu-0")
        assert launcher.observe() == []
        assert place.launcher().observe() == []

    def test_one_that_does_not_leave_in_time_is_killed(self, place: Place) -> None:
        now = [0.0]
        launcher = place.launcher(lambda: time.time() + now[0])
        self.started(place, launcher, spec(STUBBORN, drain_s=5.0))
        now[0] = -1000.0
        launcher.stop("cpu-0")
        now[0] = 0.0
        until(lambda: not only(launcher).alive, place.limit_s)
