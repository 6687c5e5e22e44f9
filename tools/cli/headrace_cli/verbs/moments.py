"""Points in time as people write them."""

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
