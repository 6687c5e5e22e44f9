"""Whom a decision looks at in a large fleet: who holds most of the prompt, the session's own few, a draw of the rest.

With some choices instead of all, queues are hardly longer (Mitzenmacher 2001), and a decision costs at a thousand
replicas what it costs at fifty. Pure: the draws are an argument. Knows places in a list, not replicas.
"""

import heapq
from collections.abc import Mapping
from random import Random

# Up to so many replicas everyone is looked at.
MOST_VIEWED = 64
NUM_DRAWN = 32
NUM_WARM = 8
# The same ones at every router, so that a session finds its home again while the fleet stays as it is.
NUM_HOMES = 4


def shortlist(num_replicas: int, num_hit_tokens: Mapping[int, int], session: str, draws: Random) -> list[int]:
    """Places in 0 .. `num_replicas` - 1, each once; `num_hit_tokens` of the prompt are held at the places named."""
    if num_replicas <= MOST_VIEWED:
        return list(range(num_replicas))
    places = heapq.nlargest(NUM_WARM, num_hit_tokens, key=num_hit_tokens.__getitem__)
    if session:
        places += Random(session).choices(range(num_replicas), k=NUM_HOMES)
    places += draws.choices(range(num_replicas), k=NUM_DRAWN)
    return list(dict.fromkeys(places))
