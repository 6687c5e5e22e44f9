"""Finds what looks like a credential in the files that git tracks; part of `make lint`.

A finding names file, line and kind, and never shows the value. Knows formats, and assignments of long random text to a
telling name; a value that only looks so has a line in ALLOWED, with its reason.
"""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_BYTES = 4 * 1024 * 1024
FORMATS: Mapping[str, re.Pattern[str]] = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{40}"),
    "cloud access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "repository token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{60,}|glpat-[\w-]{20,})"),
    "package index token": re.compile(r"\bpypi-[A-Za-z0-9_-]{60,}"),
    "model hub token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "API key": re.compile(r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}"),
    "key of ours": re.compile(r"\bhr_[A-Za-z0-9]{4,}_[A-Za-z0-9_-]{43}\b"),
    "password in a URL": re.compile(r"\b[a-z][a-z0-9+]*://[^\s:/@{}<>$\"']*:(?P<value>[^\s:/@{}<>$\"']{16,})@"),
}
ASSIGNED = re.compile(
    r"(?i)\b\w*(?:secret|password|passwd|token|api_?key|private_?key)\w*[\"']?\s*[:=]\s*[\"'](?P<value>[A-Za-z0-9+/=_-]{24,})[\"']"
)
MIN_BITS_PER_CHARACTER = 4.0

# "path": why what is found there is no secret.
ALLOWED: Mapping[str, str] = {
    "tests/unit/policy/screening/test_rules.py": "examples of what screening must find in a prompt",
}


def bits_per_character(text: str) -> float:
    """Shannon's entropy of the characters; words have 3 to 3.8, random base64 of 24 characters about 4.3."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything in a text that looks like a credential."""
    for kind, pattern in FORMATS.items():
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, kind
    for match in ASSIGNED.finditer(text):
        value = match["value"]
        if bits_per_character(value) >= MIN_BITS_PER_CHARACTER and re.search(r"\d", value):
            yield text.count("\n", 0, match.start()) + 1, "assigned secret"


def scan(root: Path) -> list[str]:
    """A line per finding in the files that git tracks below a directory."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout.decode()
    found = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if name in ALLOWED or not path.is_file() or path.stat().st_size > MAX_BYTES:
            continue
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            text = data.decode("utf-8", "replace")
            found += [f"{name}:{line}: looks like a secret: {kind}" for line, kind in findings(text)]
    return found


def main() -> None:
    found = scan(ROOT)
    print("\n".join(found) or "no secrets found", file=sys.stderr if found else sys.stdout)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
