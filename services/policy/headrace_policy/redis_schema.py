"""The number of the data in Redis: which layouts this policy can work with. Knows no key of the ledger.

A policy works with its own number only. Nothing is migrated in place: whatever the ledger holds ends within a day, and
renewals and settlements carry whole reservations, so an emptied Redis gets back what still runs.
"""

SCHEMA = 1
KEY = "headrace:schema"
LIFE_MS = 30 * 86_400_000
"""Longer than any data of ours; every look at the number makes it anew."""
SCRIPT = """
local found = redis.call('GET', KEYS[1]) or ARGV[1]
if found == ARGV[1] then redis.call('SET', KEYS[1], found, 'PX', ARGV[2]) end
return found
"""
"""The number that is there; an empty server gets ours. One call, so that two policies that start together agree."""


def complaint(found: bytes, known: int = SCHEMA) -> str:
    """Empty if we can work with it."""
    text = found.decode("utf-8", "replace")
    if text == str(known):
        return ""
    if text.isdecimal() and int(text) > known:
        return (
            f"the data in Redis is of schema {text}, and this policy knows {known}: a newer policy works there;"
            " start that version"
        )
    return (
        f"the data in Redis is of schema {text}, and this policy needs {known}: stop every older policy, then empty"
        f" that Redis or delete the key {KEY} a day after the last one stopped"
    )
