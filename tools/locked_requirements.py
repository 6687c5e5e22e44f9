"""What a distribution brings in, as exact pins of the lock: ``python -m tools.locked_requirements headrace-gateway``.

Read from the metadata of what is installed, so it is what this machine's platform needs.
"""

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[1] / "constraints.txt"
EXTRAS = {"headrace-worker": frozenset({"engine"})}


def pins(lock: str) -> dict[str, str]:
    """The lines of the lock, by canonical name."""
    lines = [line for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    return {str(canonicalize_name(line.partition("==")[0])): line for line in lines}


def closure(name: str, extras: frozenset[str]) -> set[str]:
    """Canonical names of the distribution and of everything that it requires here."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(str(canonicalize_name(name)), extras)]
    while waiting:
        key, wanted = waiting.pop()
        if (key, wanted) in found:
            continue
        found.add((key, wanted))
        for requirement in map(Requirement, distribution(key).requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                waiting.append((str(canonicalize_name(requirement.name)), frozenset(requirement.extras)))
    return {key for key, _ in found}


def locked(name: str) -> list[str]:
    """Sorted lines; our own distributions have none, for they are what is released."""
    known = pins(LOCK.read_text("utf-8"))
    needed = closure(name, EXTRAS.get(name, frozenset()))
    return sorted(known[key] for key in needed if not key.startswith("headrace-"))


if __name__ == "__main__":
    print("\n".join(locked(sys.argv[1])))
