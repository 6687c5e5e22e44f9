"""A rank that misbehaves in its sums once a file exists: `python faulty_rank.py FILE shape|stuck|raise FD`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torch import Tensor

from headrace_worker.execution import rank
from headrace_worker.parallel.collectives import Collectives

_flag, _kind = Path(sys.argv[1]), sys.argv[2]
_all_reduce = Collectives.all_reduce


def all_reduce(self: Collectives, x: Tensor) -> Tensor:
    if not _flag.exists():
        return _all_reduce(self, x)
    if _kind == "shape":
        return _all_reduce(self, x[: len(x) // 2].contiguous())
    if _kind == "stuck":
        time.sleep(60)
    raise ValueError("the rank has had enough")


if __name__ == "__main__":
    Collectives.all_reduce = all_reduce  # type: ignore[method-assign]
    sys.argv = [sys.argv[0], sys.argv[3]]
    rank.main()
