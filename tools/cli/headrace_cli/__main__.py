"""The `headrace` command."""

import argparse
import math
import sys
from collections.abc import Sequence
from types import ModuleType

import grpc

from headrace_cli.client import StreamBroken
from headrace_cli.platform.state_dir import CommandError
from headrace_cli.verbs import (
    audit,
    certs,
    chat,
    conformance,
    cost,
    down,
    fleet,
    keys,
    logs,
    quota,
    restart,
    route,
    status,
    top,
    trace,
    up,
    usage,
)
from headrace_cli.verbs.passed_on import PASSED_ON, pass_on
from headrace_kit.errors import HeadraceError
from headrace_kit.settings import version

VERBS: dict[str, ModuleType] = {
    "up": up,
    "down": down,
    "status": status,
    "top": top,
    "chat": chat,
    "logs": logs,
    "restart": restart,
    "fleet": fleet,
    "keys": keys,
    "quota": quota,
    "usage": usage,
    "cost": cost,
    "audit": audit,
    "route": route,
    "trace": trace,
    "certs": certs,
    "conformance": conformance,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in PASSED_ON:
            pass_on(words[0], words[1:])
        parser = _parser()
        _check_text(parser, words)
        options = parser.parse_args(words)
        raise SystemExit(VERBS[options.verb].run(options))
    except HeadraceError as error:
        raise SystemExit(f"headrace: {told(error)}") from None
    except (CommandError, StreamBroken) as error:
        raise SystemExit(f"headrace: {error}") from None
    except grpc.RpcError as error:
        raise SystemExit(f"headrace: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None


def told(error: HeadraceError) -> str:
    """The whole of it in one line: which field, where the message does not say so, and when to come back."""
    place = f"{error.field}: " if error.field and error.field not in error.message else ""
    wait = f"; try again in {math.ceil(error.retry_after_s)} s" if error.retry_after_s else ""
    return f"{error.reason}: {place}{error.message}{wait}"


def _check_text(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Bytes that are no UTF-8 reach us as lone surrogates, which no message of ours can carry."""
    for word in words:
        if any("\ud800" <= char <= "\udfff" for char in word):
            parser.error(f"argument {word[:40]!r} is not UTF-8 text")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Serve large language models to many tenants.")
    parser.add_argument("--version", action="version", version=f"headrace {version('cli')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        one = verbs.add_parser(name, help=verb.HELP, description=verb.HELP)
        one.add_argument(
            "--state-dir",
            metavar="DIR",
            help="directory of the platform (HEADRACE_STATE_DIR; default: the user's state directory)",
        )
        verb.add_arguments(one)
    for name, target in PASSED_ON.items():
        verbs.add_parser(name, help=target.help, add_help=False)
    return parser


if __name__ == "__main__":
    main()
