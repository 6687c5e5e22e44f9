"""One contract for all ways to travel: what is taken is what was carried, or an error says why not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_worker.transfer import nixl_agent
from headrace_worker.transfer.pages import Extent, PoolImages
from headrace_worker.transfer.shape import CorruptGroup, Expired, HandOffError, KvShape, ShapeMismatch
from headrace_worker.transfer.transport import Carried, Lease, Transport
from headrace_worker.transfer.transports import TRANSPORTS, make_transport

from .fakes import content, fill, make_pool

LEASE = Lease(slot=7, generation=41)
FROM, TO = [3, 5, 1], [2, 9, 4]


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> Transport:
    if request.param == "nixl" and (reason := nixl_agent.why_not()):
        pytest.skip(reason)
    return make_transport(request.param)


def lend(pool: PoolImages, lease: Lease = LEASE) -> None:
    for image in pool.images:
        image.slots[lease.slot] = lease.generation


def move(transport: Transport, source: PoolImages, target: PoolImages) -> None:
    """All layers of the pages, two layers at a time."""
    near = transport.source(source)
    far = transport.target(target)
    far.open(near.opening(LEASE), LEASE)
    for first in range(0, source.shape.num_layers, 2):
        extent = Extent(first, 2, 0, len(FROM))
        far.take(extent, near.carry(extent, FROM), FROM, TO)
    far.close()


@pytest.mark.parametrize(
    ("there", "here"),
    [((1, 1), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (4, 1)), ((2, 2), (4, 1)), ((8, 1), (2, 1)), ((1, 1), (8, 1))],
)
def test_what_is_taken_is_what_was_carried_whatever_the_degrees(
    transport: Transport, there: tuple[int, int], here: tuple[int, int]
) -> None:
    source, target = make_pool(*there), make_pool(*here)
    fill(source)
    lend(source)
    move(transport, source, target)
    assert content(target, TO) == content(source, FROM)
    untouched = [page for page in range(target.num_pages) if page not in TO]
    assert not any(content(target, untouched))


def test_a_flipped_bit_on_the_way_is_an_error(transport: Transport) -> None:
    source, target = make_pool(), make_pool()
    fill(source)
    lend(source)
    near, far = transport.source(source), transport.target(target)
    far.open(near.opening(LEASE), LEASE)
    extent = Extent(1, 1, 0, len(FROM))
    carried = near.carry(extent, FROM)
    if carried.payload:
        damaged = bytearray(b"".join(carried.payload))
        damaged[len(damaged) // 2] ^= 1
        carried = carried._replace(payload=[bytes(damaged)])
    else:
        source.images[0].words[1, 1, FROM[1], 3, 2, 1] ^= 1
    with pytest.raises(CorruptGroup):
        far.take(extent, carried, FROM, TO)


def test_a_group_that_says_it_is_another_is_an_error(transport: Transport) -> None:
    source, target = make_pool(), make_pool()
    fill(source)
    lend(source)
    near, far = transport.source(source), transport.target(target)
    far.open(near.opening(LEASE), LEASE)
    carried = near.carry(Extent(1, 1, 0, len(FROM)), FROM)
    with pytest.raises(CorruptGroup):
        far.take(Extent(2, 1, 0, len(FROM)), carried, FROM, TO)


def test_pages_of_one_another_are_told_apart(transport: Transport) -> None:
    source, target = make_pool(), make_pool()
    fill(source)
    lend(source)
    near, far = transport.source(source), transport.target(target)
    far.open(near.opening(LEASE), LEASE)
    extent = Extent(0, 1, 0, len(FROM))
    swapped = [FROM[1], FROM[0], FROM[2]]
    carried = Carried(near.carry(extent, FROM).checksum, near.carry(extent, swapped).payload)
    with pytest.raises(CorruptGroup):
        far.take(extent, carried, swapped, TO)


def test_what_is_read_after_the_leases_end_is_void(transport: Transport) -> None:
    if not transport.one_sided:
        pytest.skip("its source reads by itself, and asks the lease first")
    source, target = make_pool(), make_pool()
    fill(source)
    lend(source)
    near, far = transport.source(source), transport.target(target)
    far.open(near.opening(LEASE), LEASE)
    extent = Extent(0, 4, 0, len(FROM))
    carried = near.carry(extent, FROM)
    lend(source, Lease(LEASE.slot, 0))
    with pytest.raises(Expired):
        far.take(extent, carried, FROM, TO)
    lend(source, Lease(LEASE.slot, LEASE.generation + 1))
    with pytest.raises(Expired):
        far.take(extent, carried, FROM, TO)


def test_a_payload_of_the_wrong_length_is_an_error() -> None:
    source, target = make_pool(), make_pool()
    transport = make_transport("grpc")
    extent = Extent(0, 1, 0, len(FROM))
    carried = transport.source(source).carry(extent, FROM)
    with pytest.raises(CorruptGroup):
        transport.target(target).take(extent, carried._replace(payload=[b"".join(carried.payload)[:-8]]), FROM, TO)


def test_pools_of_another_kind_are_refused_by_field() -> None:
    ours = KvShape(4, 4, 4, "float32", 16)
    for field, theirs in {
        "num_layers": KvShape(5, 4, 4, "float32", 16),
        "num_kv_heads": KvShape(4, 2, 4, "float32", 16),
        "head_dim": KvShape(4, 4, 8, "float32", 16),
        "dtype": KvShape(4, 4, 4, "float16", 16),
        "page_tokens": KvShape(4, 4, 4, "float32", 32),
    }.items():
        with pytest.raises(ShapeMismatch) as caught:
            ours.check(theirs)
        assert caught.value.field == field


def test_an_unknown_transport_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(HandOffError, match="shared_memory"):
        make_transport("pigeon")


@pytest.mark.parametrize("opening", ["", "{", "[]", '[{"pid": 1}]'])
def test_an_opening_that_makes_no_sense_is_an_error(opening: str) -> None:
    far = make_transport("shared_memory").target(make_pool())
    with pytest.raises(HandOffError):
        far.open(opening, LEASE)


def start_owner() -> tuple[subprocess.Popen[str], str]:
    """A process with an image, which ends with its input, and its opening."""
    script = (
        "from headrace_worker.transfer.image import PageImage\n"
        "from headrace_worker.transfer.pages import PoolImages\n"
        "from headrace_worker.transfer.shape import KvShape, Shard\n"
        "from headrace_worker.transfer.shared_memory import encode_refs\n"
        "shape = KvShape(4, 4, 4, 'float32', 16)\n"
        "print(encode_refs(PoolImages([PageImage.create(shape, Shard(0, 4, 0, 4), 4)])), flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", script]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, owner.stdout.readline()


def end(owner: subprocess.Popen[str]) -> None:
    owner.communicate("\n")


def test_the_image_of_a_process_that_is_gone_cannot_be_opened() -> None:
    owner, opening = start_owner()
    end(owner)
    far = make_transport("shared_memory").target(make_pool())
    with pytest.raises(HandOffError):
        far.open(opening, LEASE)


def test_an_image_stays_mapped_for_the_next_transfer_and_no_longer_than_its_process() -> None:
    """Its memory is given back although a transfer was the last to read it, not the first after the end."""
    pool, transport = make_pool(), make_transport("shared_memory")
    num_own = num_mapped()
    owner, opening = start_owner()
    for _ in range(3):
        far = transport.target(pool)
        far.open(opening, LEASE)
        far.close()
    assert num_mapped() == num_own + 1
    transport.look()
    assert num_mapped() == num_own + 1
    end(owner)
    transport.look()
    assert num_mapped() == num_own
    with pytest.raises(HandOffError):
        transport.target(pool).open(opening, LEASE)


def num_mapped() -> int:
    """Images in the address space of this process."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:headrace-kv")


def test_another_file_under_the_descriptor_is_not_taken_for_the_image() -> None:
    pool = make_pool()
    opening = make_transport("shared_memory").source(pool).opening(LEASE)
    fd = os.memfd_create("other")
    os.ftruncate(fd, pool.images[0].ref.num_bytes)
    renamed = opening.replace(f'"fd": {pool.images[0].ref.fd}', f'"fd": {fd}')
    assert renamed != opening
    far = make_transport("shared_memory").target(make_pool())
    with pytest.raises(HandOffError, match="another image"):
        far.open(renamed, LEASE)
    os.close(fd)
