"""Keeps on a Ray cluster what the files say, in a process of its own: ``python -m … DIRECTORY ADDRESS NAMESPACE``.

Ray ends a process that has lost its cluster for too long, which may not be the control plane's; this one is started
again. It remembers nothing: actors and placement groups are detached and are found again by their names. One replica is
one placement group of one bundle (STRICT_PACK: all its devices are on one node) and one actor. Ends with its standard
input, which is the launcher's life.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError
from ray.util import list_named_actors, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace_controlplane.launcher.ray_files import Found, RayFiles, Wanted
from headrace_controlplane.launcher.ray_replica import Replica

_LOOK_EVERY_S = 0.5
_ANSWER_S = 5.0
_KILL_AFTER_S = 10.0


@dataclass
class _Handle:
    """An actor of ours, and the question that it has not answered yet."""

    actor: Any
    question: Any = None
    asked_to_leave: bool = False


@dataclass
class Keeper:
    """`look` does everything once, and raises what Ray raises when the cluster is away."""

    files: RayFiles
    namespace: str
    wall: Callable[[], float] = time.time
    handles: dict[str, _Handle] = field(default_factory=dict)
    """By name of the actor."""

    def look(self) -> None:
        wanted = self.files.wanted()
        names = {each.actor for each in wanted.values()}
        self._sweep(names)
        self.handles = {name: handle for name, handle in self.handles.items() if name in names}
        for replica_id, each in wanted.items():
            known = self.files.found(replica_id)
            found = known if known is not None and known.start == each.start else Found(each.start)
            if found.alive:
                self.files.tell(replica_id, self._follow(each, found))

    def _sweep(self, names: set[str]) -> None:
        """Ends what nobody wants: actors of former starts, and groups whose actor is gone."""
        for row in list_named_actors(all_namespaces=True):
            if row["namespace"] == self.namespace and row["name"] not in names:
                self._end(row["name"])
        for row in placement_group_table().values():
            name = row["name"]
            ours = name.startswith(f"{self.namespace}/") and row["state"] != "REMOVED"
            if ours and name.removeprefix(f"{self.namespace}/") not in names:
                remove_placement_group(ray.util.get_placement_group(name))

    def _follow(self, wanted: Wanted, found: Found) -> Found:
        handle = self.handles.get(wanted.actor) or self._find(wanted, found)
        if handle is None:
            self._end(wanted.actor)
            return replace(found, alive=False, pid=0, words="its actor is gone, with its node or with the cluster")
        since = self.files.stopping_since(wanted.replica_id)
        if since is not None and self.wall() > since + wanted.drain_s + _KILL_AFTER_S:
            self._end(wanted.actor)
            return Found(wanted.start, is_made=True, alive=False, words="was killed: it did not leave in time")
        if since is not None and not handle.asked_to_leave:
            handle.actor.stop.remote()
            handle.asked_to_leave = True
        return self._ask(wanted, handle, replace(found, is_made=True))

    def _find(self, wanted: Wanted, found: Found) -> _Handle | None:
        """The actor of this start, made if it never was; None if it was made and is not there any more."""
        try:
            actor = ray.get_actor(wanted.actor, namespace=self.namespace)
        except ValueError:
            if found.is_made:
                return None
            actor = self._made(wanted)
        handle = self.handles[wanted.actor] = _Handle(actor)
        return handle

    def _made(self, wanted: Wanted) -> Any:
        bundle = {name: count for name, count in (("CPU", wanted.num_cpus), ("GPU", wanted.num_gpus)) if count}
        group = placement_group(
            [bundle], strategy="STRICT_PACK", name=f"{self.namespace}/{wanted.actor}", lifetime="detached"
        )
        made = ray.remote(Replica).options(
            name=wanted.actor,
            namespace=self.namespace,
            lifetime="detached",
            max_restarts=0,
            num_cpus=wanted.num_cpus,
            num_gpus=wanted.num_gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        )
        return made.remote(wanted.replica_id, wanted.command, wanted.files, wanted.root)

    def _ask(self, wanted: Wanted, handle: _Handle, found: Found) -> Found:
        """What the actor says; what was known before, while it says nothing."""
        if handle.question is None:
            handle.question = handle.actor.status.remote()
        if not ray.wait([handle.question], timeout=0.05)[0]:
            if found.pid:
                return found
            needs = f"{wanted.num_cpus} CPUs" + (f" and {wanted.num_gpus} GPUs" if wanted.num_gpus else "")
            return replace(found, words=f"waits for a node with {needs} free")
        try:
            said = ray.get(handle.question, timeout=_ANSWER_S)
        except (ActorUnavailableError, GetTimeoutError):
            return found
        except RayActorError as error:
            self._end(wanted.actor)
            return replace(found, alive=False, pid=0, words=f"its actor died: {_first_line(error)}")
        finally:
            handle.question = None
        if not said["pid"]:
            self._end(wanted.actor)
        return Found(wanted.start, True, bool(said["pid"]), said["pid"], said["node"], said["words"])

    def _end(self, name: str) -> None:
        """The actor with its worker, and its place."""
        self.handles.pop(name, None)
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=self.namespace), no_restart=True)
        with contextlib.suppress(ValueError):
            remove_placement_group(ray.util.get_placement_group(f"{self.namespace}/{name}"))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def main() -> None:
    files, address, namespace = RayFiles(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
        keeper = Keeper(files, namespace)
        while not ended.is_set():
            keeper.look()
            files.word = ""
            ended.wait(_LOOK_EVERY_S)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        files.word = f"the Ray cluster at {address} cannot be used: {_first_line(error)}"
        raise SystemExit(files.word) from error


if __name__ == "__main__":
    main()
