"""All choices that one gateway screens over one stream. Knows rules and text; knows no quota."""

from collections.abc import Callable

from headrace.v1 import policy_pb2 as pb
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Decision, Screener

_VERDICTS = {
    "": pb.ScreenVerdict.VERDICT_UNSPECIFIED,
    "passed": pb.ScreenVerdict.VERDICT_PASSED,
    "flagged": pb.ScreenVerdict.VERDICT_FLAGGED,
    "blocked": pb.ScreenVerdict.VERDICT_BLOCKED,
}
UNKNOWN_TENANT = "tenant-is-gone"
_verdicts = telemetry.counter("screened_total", "Choices by what screening said at their end", ["verdict"])


class Floor:
    """``rules_of`` gives a tenant's rules, None if there is no such tenant."""

    def __init__(self, rules_of: Callable[[str], Ruleset | None]) -> None:
        self._rules_of = rules_of
        self._rules: dict[str, Ruleset | None] = {}
        self._screeners: dict[str, dict[int, Screener]] = {}

    def take(self, request: pb.ScreenRequest) -> pb.ScreenVerdict | None:
        """The verdict on what was received of this choice so far; None after a close. Raises invalid_argument."""
        if request.close:
            self._rules.pop(request.response_id, None)
            self._screeners.pop(request.response_id, None)
            return None
        rules = self._of(request)
        if rules is None:
            return _message(request, Decision(0, "blocked", UNKNOWN_TENANT))
        choices = self._screeners.setdefault(request.response_id, {})
        screener = choices.setdefault(request.choice, Screener(rules.output))
        if request.offset != screener.received:
            message = f"text of this choice goes on at {screener.received}, not at {request.offset}"
            raise HeadraceError("invalid_argument", message, field="offset")
        decision = screener.feed(request.text, request.final)
        if request.final or decision.verdict == "blocked":
            _verdicts.labels(decision.verdict).inc()
        return _message(request, decision)

    def _of(self, request: pb.ScreenRequest) -> Ruleset | None:
        if request.response_id not in self._rules:
            if not request.response_id or not request.tenant:
                message = "the first message of a response names it and its tenant"
                raise HeadraceError("invalid_argument", message, field="tenant")
            self._rules[request.response_id] = self._rules_of(request.tenant)
        return self._rules[request.response_id]


def _message(request: pb.ScreenRequest, decision: Decision) -> pb.ScreenVerdict:
    return pb.ScreenVerdict(
        response_id=request.response_id,
        choice=request.choice,
        released_up_to=decision.released_up_to,
        verdict=_VERDICTS[decision.verdict],
        redactions=[pb.Redaction(start=r.start, end=r.end, replacement=r.replacement) for r in decision.replaced],
        rule=decision.rule,
    )
