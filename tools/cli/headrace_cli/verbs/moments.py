"""Points in time as people write them."""

import time
from datetime import UTC, datetime

from headrace_cli.platform.state_dir import CommandError


def unix_ms(flag: str, text: str) -> int:
    """Unix milliseconds of an ISO 8601 time, in UTC unless it says otherwise; 0 for none; raises CommandError."""
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{flag}: {text!r} is no ISO 8601 time, such as 2026-11-29T12:00:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def span_ms(start: str, end: str) -> tuple[int, int]:
    """Of --from and --to, 0 where one is not given; raises CommandError for a span that ends before it begins."""
    start_ms, end_ms = unix_ms("--from", start), unix_ms("--to", end)
    if start_ms > (end_ms or time.time() * 1000):
        raise CommandError(f"--from: {start} is after {end or 'now'}")
    return start_ms, end_ms
