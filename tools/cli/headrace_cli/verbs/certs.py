"""`headrace certs init`: certificates for TLS between our services and towards clients."""

import argparse
import datetime
from pathlib import Path

from headrace_cli.platform.authority import BadName, general_names
from headrace_cli.platform.credentials_dir import CredentialsDir
from headrace_cli.platform.state_dir import CommandError, StateDir

HELP = "certificates for TLS: make and renew"
_MOST_DAYS = 825


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init", help="make a private authority unless there is one, and sign every service; again to renew"
    )
    init.add_argument("--out", type=Path, metavar="DIR", help="where to (default: certs in the state directory)")
    init.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="host name or address under which clients reach the gateway; repeatable (always: localhost, 127.0.0.1)",
    )
    init.add_argument("--days", type=int, default=90, metavar="N", help="validity of the certificates (default 90)")
    init.add_argument(
        "--for-containers",
        action="store_true",
        help="files that a container's own user can read; also the service token and the password of Redis",
    )


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.days <= _MOST_DAYS:
        raise CommandError(f"--days: expected 1 to {_MOST_DAYS}, got {options.days}")
    names = list(dict.fromkeys([*options.name, "localhost", "127.0.0.1"]))
    try:
        general_names(names)
    except BadName as error:
        raise CommandError(f"--name: {error}") from error
    out = options.out or StateDir.resolve(options.state_dir).root / "certs"
    directory = CredentialsDir(out, for_containers=options.for_containers)
    for line in directory.renew(names, options.days, datetime.datetime.now(datetime.UTC)):
        print(line)
    return 0
