"""The chain is a wire format: its values are pinned, and no two kinds of field can be mistaken for one another."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import prefix_chain as pc

TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def test_the_values_are_pinned() -> None:
    root = pc.chain_root(b"tokenizer", b"salt")
    assert root.hex() == "0e872f657dba96a91489ca6d1f24ac71"
    assert pc.hash_block(root, range(16)).hex() == "ebe69c06876294251f8b6222d7819655"


@given(TOKEN_IDS)
def test_packing_is_lossless(ids: list[int]) -> None:
    assert pc.unpack_ids(pc.pack_ids(ids)) == ids


@given(TOKEN_IDS)
def test_only_full_blocks_are_named(ids: list[int]) -> None:
    assert len(list(pc.chain(b"root", pc.pack_ids(ids)))) == len(ids) // pc.BLOCK_TOKENS


@given(TOKEN_IDS, TOKEN_IDS)
def test_a_shared_prefix_shares_its_blocks_and_nothing_more(head: list[int], tail: list[int]) -> None:
    one = list(pc.chain(b"root", pc.pack_ids(head + tail)))
    two = list(pc.chain(b"root", pc.pack_ids(head + [id_ ^ 1 for id_ in tail])))
    shared = len(head) // pc.BLOCK_TOKENS
    assert one[:shared] == two[:shared]
    assert not set(one[shared:]) & set(two[shared:]) or not tail


def test_an_adapter_is_not_a_salt() -> None:
    """An adapter's name and a tenant's salt live in different fields of different hashes (B97)."""
    ids = pc.pack_ids(range(64))
    plain, salted = pc.chain_root(b"t", b""), pc.chain_root(b"t", b"acme")
    base = pc.kv_context(b"weights", quantization="none", kv_dtype="float32")
    adapted = pc.kv_context(b"weights", quantization="none", kv_dtype="float32", adapter=b"acme")
    with_adapter = [pc.block_key(adapted, value) for value in pc.chain(plain, ids)]
    with_salt = [pc.block_key(base, value) for value in pc.chain(salted, ids)]
    assert not set(with_adapter) & set(with_salt)


def test_fields_cannot_run_into_each_other() -> None:
    assert pc.chain_root(b"ab", b"c") != pc.chain_root(b"a", b"bc")
