"""`python -m headrace_worker.scheduling replay FILE`: reproduce every plan of a recording; exit 1 at a difference."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace_worker.scheduling.record import RecordError, replay


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="headrace", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    about = "reproduce every plan of a recording of scheduler inputs; exit status 1 at the first difference"
    verb = verbs.add_parser("replay", help=about, description=about)
    verb.add_argument("file", type=Path, metavar="FILE", help="what a worker wrote that was started with --record")
    return _replay(parser.parse_args(arguments).file)


def _replay(path: Path) -> int:
    num_plans = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for replayed in replay(lines):
                if not replayed.is_same:
                    print(f"line {replayed.line}: another plan than recorded: {replayed.plan}", file=sys.stderr)
                    return 1
                num_plans += replayed.plan is not None
    except (OSError, UnicodeDecodeError, RecordError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    print(f"{num_plans} plans, every one as recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
