"""`headrace conformance URL`: proves that a server keeps the stream contract.

The kit is a distribution of its own that knows nothing of ours, so it runs as its own process. This verb adds what a
person at a local platform would otherwise type: the key of the gateway in the state directory.
"""

import argparse
import importlib.util
import os
import sys
from urllib.parse import urlsplit

from headrace_cli.platform.state_dir import CommandError, StateDir

HELP = "prove that a server keeps the stream contract"
MODULE, DISTRIBUTION = "headrace_conformance", "headrace-conformance"
API_KEY = "HEADRACE_CONFORMANCE_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, with or without /v1")
    parser.add_argument("--api-key", metavar="KEY", help=f"credential ({API_KEY}; default: the local gateway's own)")
    parser.add_argument("--model", help="model to ask (default: the only one)")
    parser.add_argument("--grpc", metavar="ADDR", help="also prove the gRPC contract at host:port")
    parser.add_argument("--control", action="store_true", help="also kill the processes of the local platform")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    parser.add_argument("--only", metavar="PREFIX", action="append", default=[], help="only rules whose id begins so")
    parser.add_argument("--list", action="store_true", help="list the rules and their reasons, ask nothing")


def run(options: argparse.Namespace) -> int:
    """Becomes the kit; returns only by an error."""
    if importlib.util.find_spec(MODULE) is None:
        raise CommandError(f"conformance needs the distribution {DISTRIBUTION}, which is not installed here")
    state = StateDir.resolve(options.state_dir)
    environment = {**os.environ, "HEADRACE_STATE_DIR": str(state.root)}
    if key := options.api_key or os.environ.get(API_KEY) or _local_key(state, options.url):
        environment[API_KEY] = key
    sys.stdout.flush()
    os.execve(sys.executable, command(options), environment)


def command(options: argparse.Namespace) -> list[str]:
    """The kit's command line; the key is not on it, for every user of the host can read that."""
    words = [sys.executable, "-m", MODULE, options.url]
    for name in ("model", "grpc", "junit"):
        if value := getattr(options, name):
            words += [f"--{name}", value]
    words += [f"--{name}" for name in ("control", "json", "list") if getattr(options, name)]
    for prefix in options.only:
        words += ["--only", prefix]
    return words


def _local_key(state: StateDir, url: str) -> str:
    """The key in the state directory, if the URL is the gateway that announced itself there; else empty."""
    announced = state.announced("gateway") or {}
    if urlsplit(url).netloc != announced.get("public_http") or not state.api_key.exists():
        return ""
    return state.read_secret(state.api_key)
