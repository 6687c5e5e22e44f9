"""Which revision of a model a gateway prepares requests for, and which ones may serve them. Pure. Knows no stream.

While a revision is rolled out, or is on trial, several run side by side. One may serve what was prepared for another if
both read and write tokens alike; a revision on trial gets its share then, and no more.
"""

from dataclasses import dataclass

from headrace.v1 import snapshot_pb2
from headrace_controlplane.beside import Beside
from headrace_controlplane.fleet.file import Fleet


@dataclass(frozen=True)
class Standing:
    """How a trial stands: running, halted, waiting or incompatible, and why."""

    state: str
    reason: str = ""


def served(fleet: Fleet, name: str, beside: Beside) -> tuple[str, bytes]:
    """(revision, card digest) that gateways use: the file's, once as many of its replicas are ready as of the other's.

    Nobody knows a new revision's tokenizer before its first replica is there; where the two read tokens in different
    ways, all requests go to the one that is used, so half of the replicas have to be of it.
    """
    wanted = fleet.models[name].revision
    card, before = beside.cards.get((name, wanted), b""), beside.served.get(name)
    if before is None or before[0] == wanted:
        return wanted, card
    num_new, num_old = (beside.serving.get((name, revision), 0) for revision in (wanted, before[0]))
    return before if not card or num_new < num_old else (wanted, card)


def standing(fleet: Fleet, name: str, beside: Beside) -> Standing:
    """Of the model's revision on trial."""
    canary = fleet.models[name].canary
    assert canary is not None, "a revision is on trial"
    row = beside.trials.get((name, canary.revision))
    if row is not None and row.halted:
        return Standing("halted", row.halted)
    card = beside.cards.get((name, canary.revision), b"")
    if not card:
        return Standing("waiting", "no replica of it was ready yet")
    revision, served_card = served(fleet, name, beside)
    if revision == canary.revision:
        return Standing("waiting", "it is what is served until the model's own revision is ready")
    if not beside.speech(card) or beside.speech(card) != beside.speech(served_card):
        return Standing("incompatible", f"its tokenizer, chat template or limits are others than those of {revision}")
    return Standing("running")


def routed(fleet: Fleet, beside: Beside) -> list[snapshot_pb2.RoutedModel]:
    """Of each model that has more than one revision to choose from."""
    rows = [_routed(fleet, name, beside) for name in fleet.models]
    return [row for row in rows if len(row.revisions) > 1 or row.HasField("canary")]


def _routed(fleet: Fleet, name: str, beside: Beside) -> snapshot_pb2.RoutedModel:
    revision, card = served(fleet, name, beside)
    canary = fleet.models[name].canary
    known = {rev: digest for (model, rev), digest in beside.cards.items() if model == name and rev != revision}
    if canary is not None:
        known.pop(canary.revision, None)
    halted = {rev for (model, rev), row in beside.trials.items() if model == name and row.halted}
    alike = [rev for rev, digest in known.items() if rev not in halted and _same(beside, digest, card)]
    row = snapshot_pb2.RoutedModel(model=name, revisions=sorted([revision, *alike]))
    trial = beside.trials.get((name, canary.revision)) if canary is not None else None
    if canary is not None and trial is not None:
        share = canary.share if standing(fleet, name, beside).state == "running" else 0.0
        row.canary.CopyFrom(snapshot_pb2.Canary(revision=canary.revision, share=share, trial=trial.trial))
    return row


def _same(beside: Beside, digest: bytes, other: bytes) -> bool:
    return bool(digest and other) and beside.speech(digest) == beside.speech(other) != b""
