"""`python -m headrace_worker.perf plan …`: the planner without gRPC, kit or torch."""

import sys

from headrace_worker.perf.command_end import ended
from headrace_worker.perf.plan_command import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["plan"]:
        sys.exit("usage: python -m headrace_worker.perf plan --model M …")
    sys.exit(ended(lambda: main(sys.argv[2:])))
