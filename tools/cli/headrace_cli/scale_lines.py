"""How scaled pools stand, in words. Knows no connection."""

import time

from headrace.v1 import fleet_pb2 as pb


def scale_line(scale: pb.PoolScale) -> str:
    """The last decision of a pool, as a comment below the file."""
    runs = f"{scale.num_ready} ready, {scale.num_starting} starting, {scale.num_draining} draining"
    kept = f"; dry run: {scale.num_kept} are kept" if scale.dry_run else ""
    alarm = "ALARM, " if scale.now.alarm else ""
    return (
        f"# scale {scale.pool}: {scale.num_desired} wanted ({runs}; reserve left {scale.num_reserve_left}{kept}): "
        f"{alarm}{scale.now.why}: {scale.now.detail}"
    )


def measured_line(scale: pb.PoolScale) -> str:
    """What the decisions of a pool rest on."""
    load = f"{scale.load:.6g} tokens/s" if scale.HasField("load") else "not known"
    capacity = f"{scale.capacity:.6g} tokens/s" if scale.HasField("capacity") else "not measured yet"
    forecast = f"{scale.forecast:.6g} tokens/s" if scale.HasField("forecast") else "none"
    return (
        f"{scale.pool}: load {load}, capacity of a replica {capacity}, forecast {forecast}, "
        f"start-up {scale.start_up_s:.3g} s"
    )


def decision_row(pool: str, decision: pb.ScaleDecision) -> tuple[str, ...]:
    """Of the history: pool, time, replicas, why, detail."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(decision.at_ms / 1000))
    alarm = "ALARM " if decision.alarm else ""
    return pool, at, str(decision.num_desired), f"{alarm}{decision.why}", decision.detail
