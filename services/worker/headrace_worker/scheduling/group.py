"""A running request: the prompt that its choices share until it is computed, then each choice by itself.

Knows pages and counts, not steps: what is computed when is the composer's business.

Pages of the prompt are computed once, under the handle of the first live choice, by the sequence `prompt`. `fork`
then gives every live choice the same table; the first write of each choice into a last, partial page that is still
shared copies it, so the last holder keeps the original.
"""

from __future__ import annotations

from array import array

from headrace_worker.scheduling.blocks import PagePool
from headrace_worker.scheduling.ledger import Reservation
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import PageCopy
from headrace_worker.scheduling.prefix import PrefixChain
from headrace_worker.scheduling.request import Request, Sequence, SequenceState


def promised_pages(num_prompt: int, max_output: int, n: int, page_tokens: int) -> int:
    """Pages of a request's whole future: the full pages of the prompt once, all that follows once per choice."""
    full = num_prompt // page_tokens
    return full + n * (-(-(num_prompt + max_output) // page_tokens) - full)


class Group:
    """One admitted request. `hits` are the pages of its prompt that it already holds by the prefix cache."""

    def __init__(
        self, request: Request, chain: PrefixChain, hits: list[int], reservation: Reservation, limits: Limits
    ) -> None:
        self.request = request
        self.num_prompt = request.num_prompt
        self.prompt_ids = request.packed_prompt()
        self.reservation = reservation
        self.page_tokens = limits.page_tokens
        self._caches_prefixes = limits.caches_prefixes
        self.ends = request.sampling.stop_token_ids
        if not request.sampling.ignore_eos:
            self.ends |= limits.end_token_ids
        self.sequences = tuple(Sequence(request, choice, state=SequenceState.RUNNING) for choice in range(request.n))
        self.live = list(self.sequences)
        self.forked = False
        self.queue_s = 0.0
        self.admitted_s = 0.0
        self.announced = False
        # Of the statistical class: its place in the order of admission, and what preemption has made of it.
        self.order = 0
        self.is_suspended = False
        self.num_preempted = 0
        # What is drawn next depends on what was drawn before, which only the host keeps: grammars and penalties.
        self.looks_back = request.grammar is not None or request.sampling.looks_back

        num_hit_tokens = len(hits) * self.page_tokens
        # A full hit leaves the last token to compute, for its logits.
        self.cached_tokens = min(num_hit_tokens, self.num_prompt - 1)
        self.prompt = Sequence(request, 0, state=SequenceState.RUNNING, page_table=tuple(hits))
        self.prompt.num_computed = self.cached_tokens
        self.prompt.num_published = len(hits)
        self.num_hit_tokens = num_hit_tokens
        self._chains = [chain] * request.n

    @property
    def is_hard(self) -> bool:
        """Whether its whole future is promised: it is never preempted."""
        return self.reservation.is_hard

    @property
    def chain(self) -> PrefixChain:
        """Begins with the prompt's identities."""
        return self._chains[0]

    @property
    def has_rows_in_flight(self) -> bool:
        return any(sequence.num_in_flight for sequence in (self.prompt, *self.live))

    @property
    def pages_per_choice(self) -> int:
        """Entries of a choice's table at its longest."""
        return -(-self.request.num_max // self.page_tokens)

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give `sequence` pages for `num_tokens` positions. Raises PoolExhausted; what it got it keeps."""
        while len(sequence.page_table) * self.page_tokens < num_tokens:
            sequence.page_table += (self.reservation.take_page(),)

    def unshare(self, sequence: Sequence, position: int, pool: PagePool) -> PageCopy | None:
        """Make the page of `position`, about to be written, the sequence's own. Raises PoolExhausted."""
        index, used = divmod(position, self.page_tokens)
        if index >= len(sequence.page_table):
            return None
        source = sequence.page_table[index]
        if pool.holders(source) == 1:
            return None
        assert self.needs_copy(sequence, pool), f"position {position} is in a page that others rely on"
        target = self.reservation.take_page()
        table = list(sequence.page_table)
        table[index] = target
        sequence.page_table = tuple(table)
        pool.release(source)
        return PageCopy(source, target, used)

    def needs_copy(self, sequence: Sequence, pool: PagePool) -> bool:
        """Whether the sequence's first write will be into a prompt page that a sibling holds too."""
        if self.num_prompt % self.page_tokens == 0 or sequence.num_computed > self.num_prompt:
            return False
        return pool.holders(sequence.page_table[self.num_prompt // self.page_tokens]) > 1

    def fork(self, pool: PagePool) -> None:
        """The prompt is planned to its end: every live choice holds its pages from here on."""
        table = self.prompt.page_table
        for sequence in self.live:
            sequence.page_table = table
            sequence.num_computed = self.num_prompt
            sequence.num_published = self.num_prompt // self.page_tokens
        for _ in self.live[1:]:
            for page in table:
                pool.share(page)
        self.prompt.page_table = ()
        self.forked = True

    def suspend(self, pool: PagePool) -> None:
        """Preempted: all pages go back, and what was drawn stays to be computed again."""
        for sequence in (self.prompt, *self.live):
            self._release(sequence, pool)
            sequence.num_computed = sequence.num_published = 0
        self.forked, self.is_suspended = False, True
        self.num_preempted += 1
        self.reservation.suspend()

    def resume(self, hits: list[int]) -> None:
        """Begin again, with the pages of the prompt that it holds by the prefix cache."""
        self.is_suspended = False
        self.num_hit_tokens = len(hits) * self.page_tokens
        self.prompt.page_table = tuple(hits)
        self.prompt.num_computed = min(self.num_hit_tokens, self.num_prompt - 1)
        self.prompt.num_published = len(hits)
        full = self.num_prompt // self.page_tokens
        self.reservation.resume(full - len(hits) + len(self.live) * (self.pages_per_choice - full), len(hits))

    def pages(self) -> list[int]:
        """Every page that it holds, as often as its tables name it."""
        return [page for sequence in (self.prompt, *self.live) for page in sequence.page_table]

    def end(self, sequence: Sequence, pool: PagePool) -> None:
        """A choice has ended: its pages and the future it will not have go back."""
        self.live.remove(sequence)
        sequence.state = SequenceState.FINISHED
        if self.is_suspended:
            unspent = 0
        elif self.forked:
            unspent = self.pages_per_choice - len(sequence.page_table) + self.needs_copy(sequence, pool)
            self._release(sequence, pool)
        else:
            unspent = self.pages_per_choice - self.num_prompt // self.page_tokens
        if not self.live and not self.forked:
            unspent = self.reservation.owed
            self._release(self.prompt, pool)
        self.reservation.forgive(unspent)
        if not self.live:
            self.reservation.close()

    @staticmethod
    def _release(sequence: Sequence, pool: PagePool) -> None:
        for page in reversed(sequence.page_table):
            pool.release(page)
        sequence.page_table = ()

    def publish(self, sequence: Sequence, page_table: tuple[int, ...], num_written: int, pool: PagePool) -> None:
        """The first `num_written` positions are computed: offer the full pages among them to the prefix cache."""
        size = self.page_tokens
        first = sequence.num_published if self._caches_prefixes else num_written // size
        for index in range(first, num_written // size):
            chain = self._chains[sequence.choice]
            if index == len(chain.identities):
                if sequence is not self.prompt:
                    chain = self._own_chain(sequence)
                chain.append(self._page_ids(sequence, index))
            pool.publish(page_table[index], chain.identities[index])
        sequence.num_published = max(sequence.num_published, num_written // size)

    def _own_chain(self, sequence: Sequence) -> PrefixChain:
        """Choices share the prompt's chain until their own output fills a page."""
        chain = self._chains[sequence.choice]
        if len(self.live) > 1 and len(chain.identities) == self.num_prompt // self.page_tokens:
            chain = self._chains[sequence.choice] = chain.fork()
        return chain

    def _page_ids(self, sequence: Sequence, index: int) -> array[int]:
        first, last = index * self.page_tokens, (index + 1) * self.page_tokens
        ids = self.prompt_ids[first:last]
        if last > self.num_prompt:
            ids.extend(sequence.output_ids[max(0, first - self.num_prompt) : last - self.num_prompt])
        return ids

    def owed_by_state(self, pool: PagePool) -> int:
        """What `reservation.owed` must be, recomputed from the tables alone (for the audit)."""
        if self.is_suspended:
            return 0
        if not self.forked:
            full = self.num_prompt // self.page_tokens
            return full - len(self.prompt.page_table) + len(self.live) * (self.pages_per_choice - full)
        futures = sum(self.pages_per_choice - len(sequence.page_table) for sequence in self.live)
        num_sharing = sum(1 for sequence in self.live if self.needs_copy(sequence, pool))
        return futures + max(0, num_sharing - 1)
