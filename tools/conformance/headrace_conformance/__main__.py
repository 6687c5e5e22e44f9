"""`headrace-conformance URL`: runs the rules and reports. Exit codes: 0 all hold, 1 a rule fails, 2 wrong usage."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from headrace_conformance import report
from headrace_conformance.rules.catalog import chosen_rules
from headrace_conformance.runner import Outcome, run
from headrace_conformance.target import Options, Unreachable

API_KEY = "HEADRACE_CONFORMANCE_API_KEY"


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    target = Options(
        options.url, options.api_key or os.environ.get(API_KEY, ""), options.model or "", options.grpc or "",
        options.control,
    )  # fmt: skip
    rules = chosen_rules(grpc=bool(target.grpc), control=target.control, only=options.only)
    if options.list:
        for rule in rules:
            print(f"{rule.id}\n    {rule.title}\n    why: {rule.reason}")
        return
    width = max((len(rule.id) for rule in rules), default=0)

    def show(outcome: Outcome) -> None:
        if not options.json:
            print(report.line(outcome, width), flush=True)

    try:
        outcomes = asyncio.run(run(target, rules, show))
    except Unreachable as error:
        raise SystemExit(f"headrace-conformance: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(report.as_json(outcomes) if options.json else report.summary(outcomes))
    if options.junit is not None:
        options.junit.write_text(report.as_junit(outcomes), "utf-8")
    raise SystemExit(any(outcome.verdict.result == "fail" for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace-conformance", description=__doc__)
    parser.add_argument(
        "--version", action="version", version=f"headrace-conformance {version('headrace-conformance')}"
    )
    parser.add_argument("url", metavar="URL", help="the server, with or without /v1")
    parser.add_argument("--api-key", metavar="KEY", help=f"credential (environment: {API_KEY})")
    parser.add_argument("--model", help="model to ask (default: the only one)")
    parser.add_argument("--grpc", metavar="ADDR", help="also prove the gRPC contract at host:port")
    parser.add_argument("--control", action="store_true",
                        help="also kill the processes of the local platform in HEADRACE_STATE_DIR")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write a JUnit report")
    parser.add_argument("--only", metavar="PREFIX", action="append", default=[],
                        help="only rules whose id begins so; may be repeated")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the rules and their reasons, ask nothing")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
