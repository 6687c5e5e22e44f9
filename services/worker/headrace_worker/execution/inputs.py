"""A plan as flat arrays: what every row computes, where it writes, which rows draw tokens. Pure; knows no tensor."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_worker.scheduling.plan import NULL_PAGE, Plan, PlanRow


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Rows are in the order of the plan; `slots` are page * page_tokens + offset, or in the null page.

    `sample_rows[i]` is the flat row whose logits `sample_handles[i]` draws from, as its output number
    `sample_indices[i]`; choices that end one prompt together share a row. Flat row `placeholder_rows[i]` computes the
    token that `placeholder_handles[i]` draws in the plan before, which is still on the device; its id here is 0.
    """

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    query_lens: list[int]
    kv_lens: list[int]
    page_tables: list[tuple[int, ...]]
    sample_rows: list[int]
    sample_handles: list[int]
    sample_indices: list[int]
    placeholder_rows: list[int]
    placeholder_handles: list[int]


def flatten(plan: Plan, page_tokens: int) -> StepInputs:
    """The arrays of one step."""
    inputs = StepInputs([], [], [], [], [], [], [], [], [], [], [])
    for row in plan.rows:
        _append(inputs, row, page_tokens)
    return inputs


def _append(inputs: StepInputs, row: PlanRow, page_tokens: int) -> None:
    end = row.start + len(row.token_ids)
    assert end <= len(row.page_table) * page_tokens, f"handle {row.handle} reaches behind its pages"
    if row.placeholder:
        inputs.placeholder_rows.append(len(inputs.token_ids))
        inputs.placeholder_handles.append(row.handle)
        inputs.token_ids.append(0)
    else:
        inputs.token_ids.extend(row.token_ids)
    for position in range(row.start, end):
        page = row.page_table[position // page_tokens] if position >= row.write_from else NULL_PAGE
        inputs.slots.append(page * page_tokens + position % page_tokens if page != NULL_PAGE else 0)
    inputs.positions.extend(range(row.start, end))
    inputs.query_lens.append(end - row.start)
    inputs.kv_lens.append(end)
    inputs.page_tables.append(row.page_table)
    for handle in row.samples:
        inputs.sample_rows.append(len(inputs.token_ids) - 1)
        inputs.sample_handles.append(handle)
        inputs.sample_indices.append(row.output_index)
