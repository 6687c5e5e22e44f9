"""What a rule needs of the server before it can be decided."""

from functools import wraps

from headrace_conformance.rule import Probe
from headrace_conformance.target import Target
from headrace_conformance.verdict import Verdict, na


def scripted(probe: Probe) -> Probe:
    """The rule needs a model that plays scripts."""

    @wraps(probe)
    async def guarded(target: Target) -> Verdict:
        if not target.scripted:
            return na(f"the model {target.model!r} plays no scripts")
        return await probe(target)

    return guarded
