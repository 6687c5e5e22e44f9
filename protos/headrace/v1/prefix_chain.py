"""The chain of block hashes that gateway, router and worker must agree on (version 1).

A chain value names 16 tokens and everything before them. Every field that goes into a hash is tagged with its kind and
prefixed with its length, so that no two fields can be mistaken for one another: a tenant salt can never equal an
adapter, nor the end of one field the start of the next. This module does not know who holds which block.

Hash: BLAKE2b (RFC 7693) with a 16-byte digest and a personalisation string that names this format.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from sys import byteorder

BLOCK_TOKENS = 16
DIGEST_BYTES = 16
_PERSON = b"headrace.chain.1"
_BLOCK_BYTES = 4 * BLOCK_TOKENS


def _digest(*fields: tuple[bytes, bytes]) -> bytes:
    """Hash of (kind, value) pairs: each is kind, length of the value as 8 bytes little-endian, value."""
    state = blake2b(digest_size=DIGEST_BYTES, person=_PERSON)
    for kind, value in fields:
        assert len(kind) == 4, "a field kind has four bytes"
        state.update(kind + len(value).to_bytes(8, "little") + value)
    return state.digest()


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32, the form in which they travel."""
    packed = array("I", token_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """Inverse of `pack_ids`; raises ValueError if the length is no multiple of four."""
    ids = array("I")
    ids.frombytes(packed)
    if byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def chain_root(tokenizer_digest: bytes, tenant_salt: bytes) -> bytes:
    """Root of every chain of one tokenizer within one tenant, or one group of tenants that share."""
    return _digest((b"root", b""), (b"tokn", tokenizer_digest), (b"salt", tenant_salt))


def kv_context(fingerprint: bytes, *, quantization: str, kv_dtype: str, adapter: bytes = b"") -> bytes:
    """Digest of everything but tokens and tenant that shapes KV: weights and revision, precision, adapter."""
    return _digest(
        (b"kvcx", b""),
        (b"fing", fingerprint),
        (b"quan", quantization.encode()),
        (b"kvdt", kv_dtype.encode()),
        (b"adap", adapter),
    )


def hash_packed(parent: bytes, packed: bytes) -> bytes:
    """Chain value of one block of packed ids after `parent`."""
    assert len(packed) == _BLOCK_BYTES, f"a block has {BLOCK_TOKENS} tokens, got {len(packed)} bytes"
    return _digest((b"prnt", parent), (b"toks", packed))


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Chain value of the block `token_ids` (16 ids) after `parent`."""
    return hash_packed(parent, pack_ids(token_ids))


def chain(root: bytes, packed: bytes) -> Iterator[bytes]:
    """Chain values of the full blocks of a packed prompt, first block first."""
    parent = root
    for start in range(0, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = hash_packed(parent, packed[start : start + _BLOCK_BYTES])
        yield parent


def block_key(context: bytes, chain_value: bytes) -> bytes:
    """Key of a block in caches and in the index: nobody can hit across KV contexts."""
    return _digest((b"ckey", b""), (b"kvcx", context), (b"chvl", chain_value))
