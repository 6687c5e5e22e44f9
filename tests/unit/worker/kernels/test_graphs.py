"""Captured decodes: buckets, static buffers, and the same logits as steps that are computed as they come."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.attention.triton_paged import TritonPagedAttention
from headrace_worker.execution.decode_buckets import bucket_of, bucket_sizes
from headrace_worker.execution.graphs import DecodeGraphs, StaticInputs, eager
from headrace_worker.execution.inputs import StepInputs
from headrace_worker.execution.loaded import Loaded
from headrace_worker.models.checkpoint import open_files
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.drive import PAGE_SIZE, Driver
from tests.unit.worker.models.tiny import write_tiny


@given(most=st.integers(1, 1024), wanted=st.integers(1, 2000))
def test_buckets_hold_every_batch_with_little_padding(most: int, wanted: int) -> None:
    sizes = bucket_sizes(most)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == most and len(sizes) <= 60
    bucket = bucket_of(wanted, sizes)
    assert (bucket is None) == (wanted > most)
    if bucket is not None:
        assert wanted <= bucket <= max(2 * wanted, wanted + 8)


def test_nothing_to_decode_is_in_no_bucket() -> None:
    assert bucket_of(0, bucket_sizes(8)) is None


def decodes(ids: list[int], positions: list[int], tables: list[tuple[int, ...]]) -> StepInputs:
    slots = [table[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for table, at in zip(tables, positions, strict=True)]
    rows = list(range(len(ids)))
    lens = [at + 1 for at in positions]
    return StepInputs(ids, positions, slots, [1] * len(ids), lens, tables, rows, rows, [0] * len(ids), [], [])


def test_padding_of_a_bucket_is_the_null_slot_and_no_length() -> None:
    static = StaticInputs(4, 3, PAGE_SIZE, torch.device("cpu"))
    static.fill(decodes([5, 6, 7], [3, 20, 33], [(4,), (1, 2), (3, 5, 6)]), 4)
    static.fill(decodes([9], [17], [(2, 7)]), 2)
    batch = static.batch(2)
    assert batch.kv_lens_S.tolist() == [18, 0] and batch.slots_S.tolist() == [7 * PAGE_SIZE + 1, 0]
    assert static.ids_S[:2].tolist() == [9, 0] and static.positions_S[:2].tolist() == [17, 0]
    assert batch.page_table_SP[0, :2].tolist() == [2, 7] and batch.most_tokens == 3 * PAGE_SIZE


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    torch.set_num_threads(1)
    model = load_model(open_files(write_tiny(tmp_path / "m", "llama")), BuildOptions(row_kernels=True))
    made = Driver(model, deterministic=False, num_sequences=3, max_tokens=32)
    made.backend = TritonPagedAttention()
    return made


def test_replayed_decodes_give_the_logits_of_plain_steps(driver: Driver) -> None:
    """Three sequences over a page's end in a bucket of four, then one alone; the null page stays as it was."""
    prompts = {0: [1, 2, 3], 1: list(range(16)), 2: [40, 41]}
    with torch.inference_mode():
        driver.step(prompts)
        loaded = Loaded(driver.model, driver.backend, torch.float32, torch.float32, torch.device("cpu"), frozenset())
        assert DecodeGraphs.usable(loaded, driver.kv)
        static = StaticInputs(4, 2, PAGE_SIZE, torch.device("cpu"))
        graphs = DecodeGraphs(loaded, driver.kv, static, eager)
        for members in ([0, 1, 2], [1]):
            ids = [7 + number for number in members]
            inputs = decodes(ids, [driver.reached[m] for m in members], [tuple(driver.tables[m][:2]) for m in members])
            assert graphs.serves(inputs)
            got = graphs.run(inputs, lambda ids_S: ids_S)
            wanted = driver.step({member: [token] for member, token in zip(members, ids, strict=True)})
            torch.testing.assert_close(got, torch.cat([wanted[m] for m in members]), rtol=1e-4, atol=1e-5)
    assert not driver.kv[0].k_PBKD[0].any()


def test_prompts_and_larger_batches_are_not_served(driver: Driver) -> None:
    loaded = Loaded(driver.model, driver.backend, torch.float32, torch.float32, torch.device("cpu"), frozenset())
    graphs = DecodeGraphs(loaded, driver.kv, StaticInputs(2, 2, PAGE_SIZE, torch.device("cpu")), eager)
    assert not graphs.serves(decodes([1, 2, 3], [0, 0, 0], [(1,), (2,), (3,)]))
    assert not graphs.serves(decodes([1], [40], [(1, 2, 3)]))
    prompt = decodes([1, 2], [0, 1], [(1,), (1,)])
    prompt.query_lens[:] = [2]
    assert not graphs.serves(prompt)
