"""The scheduler's inputs as JSON lines, and every plan reproduced from them offline.

One `header` (limits, epoch), then in order `submit`, `cancel`, `plan`, `complete`, `clear_cache`, and of hand-offs
`received`, `receive_failed`, `end_transfer`. A plan line has the
predictions the step asked for and the digest of the plan that was made. Prompt ids are in the clear; logprobs are left
out. Knows how to write a line, not where it goes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.chunking import StepTimePredictor
from headrace_worker.scheduling.entrance import HandleInUse
from headrace_worker.scheduling.events import Event
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import Plan, ResultRow, StepResult
from headrace_worker.scheduling.prefix import HashBlock
from headrace_worker.scheduling.request import Grammar, HandOff, Request, SamplingParams
from headrace_worker.scheduling.scheduler import Scheduler

_VERSION = 1


class RecordError(ValueError):
    """A line that is not part of a recording. The message has its number, from 1."""


class Replayed(NamedTuple):
    """One `plan` line: the plan made now, and whether it is the one that was recorded."""

    line: int
    plan: Plan | None
    is_same: bool


class RecordingScheduler(Scheduler):
    """A scheduler that writes its every input first, and after each plan what was predicted and what was planned."""

    def __init__(
        self,
        limits: Limits,
        hash_block: HashBlock,
        write: Callable[[str], object],
        predictor: StepTimePredictor | None = None,
        epoch: int = 1,
    ) -> None:
        self._write = write
        self._predictions = _RecordedPredictor(predictor) if predictor is not None else None
        super().__init__(limits, hash_block, self._predictions, epoch)
        sizes = asdict(limits) | {"end_token_ids": sorted(limits.end_token_ids)}
        self._put("header", version=_VERSION, limits=sizes, epoch=epoch, predicts=predictor is not None)

    def submit(self, request: Request, now: float) -> None:
        self._put("submit", now=now, request=_encode_request(request))
        super().submit(request, now)

    def cancel(self, cancel: Cancel) -> None:
        self._put("cancel", cancel=asdict(cancel))
        super().cancel(cancel)

    def plan(self, now: float) -> Plan | None:
        plan = super().plan(now)
        predictions = self._predictions.take() if self._predictions is not None else []
        self._put("plan", now=now, predictions=predictions, digest=_digest(plan))
        return plan

    def complete(self, result: StepResult, now: float) -> list[Event]:
        rows = [[row.handle, list(row.token_ids), row.error, row.complete] for row in result.rows]
        self._put("complete", now=now, step=result.step, rows=rows)
        return super().complete(result, now)

    def clear_cache(self, epoch: int) -> None:
        self._put("clear_cache", epoch=epoch)
        super().clear_cache(epoch)

    def received(self, handle: int) -> None:
        self._put("received", handle=handle)
        super().received(handle)

    def receive_failed(self, handle: int, reason: str, now: float) -> None:
        self._put("receive_failed", handle=handle, reason=reason, now=now)
        super().receive_failed(handle, reason, now)

    def end_transfer(self, handle: int) -> None:
        self._put("end_transfer", handle=handle)
        super().end_transfer(handle)

    def _put(self, kind: str, **fields: object) -> None:
        self._write(json.dumps({"kind": kind} | fields, separators=(",", ":")))


class _RecordedPredictor:
    def __init__(self, predictor: StepTimePredictor) -> None:
        self._predictor = predictor
        self._asked: list[float] = []

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        seconds = self._predictor.predict_step_s(prefill_tokens, decode_rows, context_tokens, cached_tokens)
        self._asked.append(seconds)
        return seconds

    def take(self) -> list[float]:
        asked, self._asked = self._asked, []
        return asked


class _ReplayedPredictor:
    """Answers as it was answered then. A question too many is answered with 0: the digest will tell."""

    def __init__(self) -> None:
        self.answers: deque[float] = deque()

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        return self.answers.popleft() if self.answers else 0.0


def replay(lines: Iterable[str]) -> Iterator[Replayed]:
    """Drive a new scheduler with recorded inputs; yields every plan. Raises RecordError on a line that is none."""
    replayer: _Replayer | None = None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if replayer is None:
                replayer = _Replayer(entry)
                continue
            plan = replayer.play(entry)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise RecordError(f"line {number}: {error!r}") from error
        if entry["kind"] == "plan":
            yield Replayed(number, plan, _digest(plan) == entry["digest"])
    if replayer is None:
        raise RecordError("line 1: there is no recording in this file")


class _Replayer:
    def __init__(self, header: dict[str, Any]) -> None:
        if header["kind"] != "header" or header["version"] != _VERSION:
            raise ValueError(f"not the header of a version {_VERSION} recording")
        sizes = header["limits"]
        limits = Limits(**(sizes | {"end_token_ids": frozenset(sizes["end_token_ids"])}))
        self._predictor = _ReplayedPredictor()
        predictor = self._predictor if header["predicts"] else None
        self._scheduler = Scheduler(limits, _hash_block, predictor, header["epoch"])

    def play(self, entry: dict[str, Any]) -> Plan | None:
        """Make the recorded move; the plan if it was one."""
        kind, scheduler, plan = entry["kind"], self._scheduler, None
        if kind == "plan":
            self._predictor.answers = deque(entry["predictions"])
            plan = scheduler.plan(entry["now"])
        elif kind == "submit":
            self._submit(_decode_request(entry["request"]), entry["now"])
        elif kind == "cancel":
            scheduler.cancel(Cancel(**entry["cancel"]))
        elif kind == "complete":
            rows = tuple(ResultRow(handle, tuple(ids), None, error, done) for handle, ids, error, done in entry["rows"])
            scheduler.complete(StepResult(entry["step"], rows), entry["now"])
        elif kind == "clear_cache":
            scheduler.clear_cache(entry["epoch"])
        else:
            self._hand_off(kind, entry)
        scheduler.take_events()
        return plan

    def _hand_off(self, kind: str, entry: dict[str, Any]) -> None:
        if kind == "received":
            self._scheduler.received(entry["handle"])
        elif kind == "receive_failed":
            self._scheduler.receive_failed(entry["handle"], entry["reason"], entry["now"])
        elif kind == "end_transfer":
            self._scheduler.end_transfer(entry["handle"])
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def _submit(self, request: Request, now: float) -> None:
        try:
            self._scheduler.submit(request, now)
        except HandleInUse:
            # It was refused then, too, and changed nothing.
            return


def _hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Stands in for the real chain: plans depend on which chains are equal, not on their values."""
    return hashlib.sha256(parent + b"".join(token_id.to_bytes(4, "little") for token_id in token_ids)).digest()


def _digest(plan: Plan | None) -> str:
    """Of everything that execution reads; of admitted requests their handles, as their content is in `submit`."""
    if plan is None:
        return ""
    parts = (
        plan.step,
        [tuple(row) for row in plan.rows],
        [tuple(copy) for copy in plan.copies],
        [request.handle for request in plan.admitted],
        plan.released,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _encode_request(request: Request) -> dict[str, Any]:
    sampling = asdict(request.sampling)
    for field in ("allowed_ids", "banned_ids", "stop_token_ids"):
        sampling[field] = None if sampling[field] is None else sorted(sampling[field])
    sampling["logit_bias"] = list(request.sampling.logit_bias.items())
    return asdict(request) | {
        "prompt_ids": list(request.prompt_ids),
        "sampling": sampling,
        "chain_root": request.chain_root.hex(),
        "kv_context": request.kv_context.hex(),
        "hand_off": request.hand_off.value,
    }


def _decode_request(fields: dict[str, Any]) -> Request:
    sampling, grammar = fields["sampling"], fields["grammar"]
    sets = ("allowed_ids", "banned_ids", "stop_token_ids")
    id_sets = {field: None if sampling[field] is None else frozenset(sampling[field]) for field in sets}
    logit_bias = {int(token_id): bias for token_id, bias in sampling["logit_bias"]}
    decoded = {
        "prompt_ids": tuple(fields["prompt_ids"]),
        "sampling": SamplingParams(**(sampling | id_sets | {"logit_bias": logit_bias})),
        "grammar": None if grammar is None else Grammar(**grammar),
        "chain_root": bytes.fromhex(fields["chain_root"]),
        "kv_context": bytes.fromhex(fields["kv_context"]),
        "hand_off": HandOff(fields.get("hand_off", "")),
    }
    return Request(**(fields | decoded))
