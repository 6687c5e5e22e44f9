"""Section ``safety``: rules on what may be said, and origins that a browser may call from. Enforces nothing itself."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import re2

from headrace_controlplane.fleet.problems import Problem, join
from headrace_controlplane.fleet.schema import setting


@dataclass(frozen=True)
class Rule:
    """One rule; it applies to the tenants that name it."""

    detector: Literal["blocklist", "regex", "pii", "injection", "repetition", "guard"] = setting(..., "how it detects")
    side: Literal["input", "output", "both"] = setting("both", "which text it reads")
    action: Literal["block", "flag", "redact"] = setting("block", "what it does")
    values: tuple[str, ...] = setting((), "words, patterns or entity names, as the detector wants them")
    fail_open: bool = setting(False, "let text pass while the detector cannot run")
    guard_model: str = setting("", "model that a guard rule asks")
    replacement: str = setting("[redacted]", "text that replaces what a redact rule found")

    def check(self, path: str) -> Iterator[Problem]:
        if self.detector in ("blocklist", "regex") and not self.values:
            yield Problem(join(path, "values"), f"a {self.detector} rule needs at least one")
        if (self.detector == "guard") != bool(self.guard_model):
            yield Problem(join(path, "guard_model"), "a guard rule needs one, and no other rule has one")
        if self.action == "redact" and (self.side == "input" or self.detector in ("repetition", "guard")):
            yield Problem(join(path, "action"), "this cannot be redacted, only blocked or flagged")
        if self.detector in ("regex", "injection"):
            yield from _bad_patterns(self.values, join(path, "values"))


def _bad_patterns(values: tuple[str, ...], path: str) -> Iterator[Problem]:
    options = re2.Options()
    options.log_errors = False
    for i, value in enumerate(values):
        try:
            re.compile(value)  # policy reads its syntax, and finds in linear time what RE2 can find
            re2.compile(value, options)
        except re.error as error:
            yield Problem(join(path, i), f"not a regular expression: {error}")
        except re2.error as error:
            yield Problem(join(path, i), f"cannot be found in linear time (RE2): {error.args[0].decode()}")
        else:
            if re2.fullmatch(value, "", options):
                yield Problem(join(path, i), "matches empty text, so it would match everywhere")


@dataclass(frozen=True)
class Safety:
    """Everything that keeps harm out."""

    rules: dict[str, Rule] = setting({}, "rules by name")
    cors_origins: tuple[str, ...] = setting((), "origins that a browser may call from; empty: none")

    def check(self, path: str) -> Iterator[Problem]:
        for i, origin in enumerate(self.cors_origins):
            if not re.fullmatch(r"\*|https?://[^\s/]+", origin):
                yield Problem(join(join(path, "cors_origins"), i), f'expected https://HOST or "*", got "{origin}"')
