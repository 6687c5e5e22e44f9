"""Two H100s under a prefill-heavy load, on a virtual clock: two whole replicas, or one that prefills for the other.

The schedulers are production's; the time of every step is the roofline's of its plan. KV crosses NVLink at a quarter of
its rate, a millisecond late.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.v1.prefix_chain import hash_block
from headrace_worker.execution.step_times import load_of
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.step import Roofline
from headrace_worker.scheduling.events import Event, Finished, PagesWanted, Tokens
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import Plan, ResultRow, StepResult
from headrace_worker.scheduling.request import HandOff, Request, SamplingParams
from headrace_worker.scheduling.scheduler import Scheduler

MODEL = BUILT_IN_MODELS["llama-3.1-8b"]
NUM_REQUESTS, RATE_PER_S = 400, 3.0
NUM_PROMPT, NUM_OUTPUT = (3000, 6000), (80, 160)
KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
TRANSFER_BYTES_PER_S, TRANSFER_S = 450e9 / 4, 1e-3
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Arrival(NamedTuple):
    """One request of the load."""

    at_s: float
    num_prompt: int
    num_output: int


def load(seed: int = 5) -> list[Arrival]:
    """Poisson arrivals of long prompts with short answers."""
    chance, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(NUM_REQUESTS):
        now += chance.expovariate(RATE_PER_S)
        arrivals.append(Arrival(now, chance.randint(*NUM_PROMPT), chance.randint(*NUM_OUTPUT)))
    return arrivals


@dataclass
class Card:
    """One GPU: its scheduler, and the gaps between tokens that its streams saw."""

    scheduler: Scheduler
    roofline: Roofline
    busy: bool = False
    last_s: dict[int, float] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)


class Replay:
    """Events in the order of their time; ties in the order of their making."""

    def __init__(self, num_cards: int = 2) -> None:
        self.cards = [_card() for _ in range(num_cards)]
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.on_wanted: Callable[[PagesWanted], None] = lambda wanted: None
        self.on_prefilled: Callable[[int], None] = lambda handle: None

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, what))

    def run(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()
            for card in self.cards:
                if not card.busy:
                    self._step(card)

    def _step(self, card: Card) -> None:
        plan = card.scheduler.plan(self.now)
        self._note(card, card.scheduler.take_events())
        if plan is not None:
            card.busy = True
            self.at(self.now + card.roofline.step_time_s(load_of(plan)), lambda: self._end(card, plan))

    def _end(self, card: Card, plan: Plan) -> None:
        card.busy = False
        rows = tuple(ResultRow(handle, (1,)) for row in plan.rows for handle in row.samples)
        self._note(card, card.scheduler.complete(StepResult(plan.step, rows), self.now))

    def _note(self, card: Card, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                before_s = card.last_s.get(event.handle)
                card.last_s[event.handle] = self.now
                if before_s is not None:
                    card.gaps_s.append(self.now - before_s)
            elif isinstance(event, PagesWanted):
                self.on_wanted(event)
            elif isinstance(event, Finished) and event.reason == "prefilled":
                self.on_prefilled(event.handle)


def _card() -> Card:
    limits = Limits(
        num_pages=24_000,
        vocab_size=MODEL.vocab_size,
        max_sequence_tokens=8192,
        max_running=128,
        max_step_tokens=2048,
        max_chunk_tokens=512,
    )
    layout = Layout(1)
    roofline = Roofline(MODEL, weight_precision("bf16"), kv_precision("bf16"), card_named("h100-80gib"), layout)
    return Card(Scheduler(limits, hash_block), roofline)


def _request(number: int, arrival: Arrival, hand_off: HandOff = HandOff.NONE) -> Request:
    """Prompts have nothing in common."""
    chance = random.Random(number)
    ids = [chance.randrange(1000) for _ in range(arrival.num_prompt)]
    return Request(number, f"r{number}", 1, ids, arrival.num_output, sampling=GREEDY, hand_off=hand_off)


def one_pool() -> list[float]:
    """Each card gets every other request."""
    replay = Replay()
    for number, arrival in enumerate(load()):
        card = replay.cards[number % 2]

        def arrive(number: int = number, arrival: Arrival = arrival, card: Card = card) -> None:
            card.scheduler.submit(_request(number, arrival), replay.now)

        replay.at(arrival.at_s, arrive)
    replay.run()
    return sorted(gap for card in replay.cards for gap in card.gaps_s)


def split() -> list[float]:
    """The first card prefills for the second."""
    replay = Replay()
    prefill, decode = (card.scheduler for card in replay.cards)
    requests: dict[int, Request] = {}

    def wanted(event: PagesWanted) -> None:
        whole = requests[event.handle]
        ids = list(whole.prompt_ids)[: event.num_tokens]
        prefill.submit(Request(event.handle, f"p{event.handle}", 1, ids, 1, hand_off=HandOff.SEND), replay.now)

    def prefilled(handle: int) -> None:
        took_s = TRANSFER_S + requests[handle].num_prompt * KV_BYTES_PER_TOKEN / TRANSFER_BYTES_PER_S

        def arrived() -> None:
            prefill.end_transfer(handle)
            decode.received(handle)

        replay.at(replay.now + took_s, arrived)

    replay.on_wanted, replay.on_prefilled = wanted, prefilled
    for number, arrival in enumerate(load()):

        def arrive(number: int = number, arrival: Arrival = arrival) -> None:
            requests[number] = _request(number, arrival, HandOff.RECEIVE)
            decode.submit(requests[number], replay.now)

        replay.at(arrival.at_s, arrive)
    replay.run()
    return sorted(gap for card in replay.cards for gap in card.gaps_s)


def p99(gaps_s: list[float]) -> float:
    return gaps_s[int(len(gaps_s) * 0.99)]


if __name__ == "__main__":
    whole, apart = one_pool(), split()
    print(f"p99 of {len(whole)} and {len(apart)} gaps: {p99(whole) * 1e3:.2f} ms, {p99(apart) * 1e3:.2f} ms")
