"""What one engine step does, and what came of it: the only data between the scheduler and the execution.

Plans execute in the order of their step numbers, and so do their writes: a page freed while a plan that writes it is
in flight may be handed out at once. Page 0 is the null page: never in a table's live part, target of all padding.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace_worker.scheduling.request import Request

NULL_PAGE = 0


class PageCopy(NamedTuple):
    """Copy the KV of all layers from page `source` to page `target`; only the first `num_tokens` slots matter."""

    source: int
    target: int
    num_tokens: int


class PlanRow(NamedTuple):
    """The tokens that one sequence runs in a step: positions start .. start + len(token_ids) - 1.

    KV of positions below `write_from` is already there: compute them, but write theirs to the null page.
    `samples` names the handles that each draw one token from the logits of the row's last position: empty in the
    middle of a prompt, all live choices at the end of a prompt, otherwise the row's own handle.
    A row of a prompt goes under the handle of the first choice that is still live.
    `output_index` is the index, among the output ids, of the token drawn (the random stream is keyed by it).
    `placeholder`: the only token id is not on the host yet (it reads -1): it is the one that this handle draws in the
    latest earlier plan that names it in `samples`.
    """

    handle: int
    token_ids: tuple[int, ...]
    start: int
    page_table: tuple[int, ...]
    samples: tuple[int, ...]
    output_index: int
    write_from: int
    placeholder: bool = False


class PageExport(NamedTuple):
    """Pages of a prompt, from its page `first_page` on, that this step makes whole and another replica waits for.

    `handle` is that of the request; after the last one nothing follows for it.
    """

    handle: int
    first_page: int
    pages: tuple[int, ...]
    is_last: bool


class Plan(NamedTuple):
    """One engine step.

    Do in this order: forget `released` handles, learn `admitted` requests (all their choices), perform `copies`,
    then run `rows` as one batch. `step` rises by one per plan. A handle in `released` never appears again.
    `imports` are pages that another replica has filled since the plan before; `exports` are for others to read.
    """

    step: int
    rows: tuple[PlanRow, ...]
    copies: tuple[PageCopy, ...] = ()
    admitted: tuple[Request, ...] = ()
    released: tuple[int, ...] = ()
    exports: tuple[PageExport, ...] = ()
    imports: tuple[int, ...] = ()


class ResultRow(NamedTuple):
    """What one sampling handle got: token ids in order; none and no error = no progress, the row is run again.

    `logprobs`, if asked for, has one opaque entry per token. `error` is a reason of the `failed` table.
    `complete`: after the last of the ids the text is whole and nothing may follow it (a grammar has ended).
    """

    handle: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[object, ...] | None = None
    error: str | None = None
    complete: bool = False


class StepResult(NamedTuple):
    """The outcome of the plan with the same step. A row that was to sample and is missing made no progress.

    An error row may also name the handle of a row that does not sample (a prompt that failed in the middle).
    """

    step: int
    rows: tuple[ResultRow, ...]
