"""Runs rules one after another against one server. Knows no rule and no format."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from headrace_conformance import corpus
from headrace_conformance.client import Client
from headrace_conformance.rule import Rule
from headrace_conformance.target import Options, Target, Unreachable
from headrace_conformance.verdict import Verdict, failed


@dataclass(frozen=True)
class Outcome:
    """What one rule said, and how long it took."""

    rule: Rule
    verdict: Verdict
    seconds: float


async def run(
    options: Options, rules: Sequence[Rule], on_outcome: Callable[[Outcome], object] = lambda _: None
) -> list[Outcome]:
    """Raises Unreachable if the server cannot be tested at all."""
    client = Client(options.origin, options.api_key)
    try:
        target = await _ready(options, client)
        outcomes = []
        for rule in rules:
            outcomes.append(await _outcome(rule, target))
            on_outcome(outcomes[-1])
        return outcomes
    finally:
        await client.close()


async def _ready(options: Options, client: Client) -> Target:
    target = Target(options, client)
    try:
        await target.find_out()
        target.recordings = await corpus.record(target)
    except httpx.HTTPError as error:
        raise Unreachable(f"{options.origin} does not answer: {type(error).__name__} {error}") from error
    return target


async def _outcome(rule: Rule, target: Target) -> Outcome:
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        async with asyncio.timeout(rule.timeout_s):
            verdict = await rule.probe(target)
    except TimeoutError:
        verdict = failed(f"not decided within {rule.timeout_s:g} s: the server hangs")
    except httpx.HTTPError as error:
        verdict = failed(f"the exchange broke: {type(error).__name__} {error}")
    return Outcome(rule, verdict, clock() - started)
