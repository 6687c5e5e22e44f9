"""Every pure check, in the order of a report."""

from headrace_conformance.checks import framing, identity, logprobs, messages, order, responses, usage
from headrace_conformance.checks.check import Check

CHECKS: tuple[Check, ...] = (
    *identity.CHECKS,
    *order.CHECKS,
    *framing.CHECKS,
    *usage.CHECKS,
    *logprobs.CHECKS,
    *responses.CHECKS,
    *messages.CHECKS,
)
