"""Every way in which one .safetensors file can be damaged is noticed before a tensor is read."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.safetensors_file import SafetensorsFile


def write(path: Path, header: Any, data: bytes = b"", header_bytes: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if header_bytes is None else header_bytes) + raw + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_the_library_writes_is_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "matrix": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype),
        "scalar": torch.tensor(1.5, dtype=dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert file.spans.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(file.read(name), tensor)
        assert file.read(name).dtype == dtype


@pytest.mark.parametrize(
    ("header", "data", "detail"),
    [
        (b"{not json", b"", "header is not JSON"),
        ([], b"", "header is not an object"),
        ({"a": 1}, b"", "header entry of a is malformed"),
        ({"a": entry(shape=(-2,))}, bytes(8), "header entry of a is malformed"),
        ({"a": entry(shape="2")}, bytes(8), "header entry of a is malformed"),
        ({"a": entry(dtype="F31")}, bytes(8), "a has unknown type F31"),
        ({"a": entry(shape=(3,))}, bytes(8), r"a has 8 bytes; F32 \[3\] needs 12"),
        ({"a": entry(offsets=(8, 0))}, bytes(8), "a has -8 bytes"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), "a starts at byte 4 of the data; 0 was expected"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "b starts at byte 4 of the data; 8 was expected"),
        ({"a": entry()}, bytes(7), "holds 7 bytes of data; the header describes 8"),
        ({"a": entry()}, bytes(9), "holds 9 bytes of data; the header describes 8"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path: Path, header: Any, data: bytes, detail: str) -> None:
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(CheckpointError, match=f"^bad.safetensors: {detail}"):
        SafetensorsFile(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.safetensors", {}, header_bytes=2**60)
    with pytest.raises(CheckpointError, match="header claims 1152921504606846976 bytes"):
        SafetensorsFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^none\.safetensors: is missing"):
        SafetensorsFile(tmp_path / "none.safetensors")


def test_a_tensor_of_whole_numbers_is_refused_when_it_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.int64)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="a has type I64"):
        SafetensorsFile(tmp_path / "a.safetensors").read("a")


@given(num_bytes=st.integers(0, 250))
def test_a_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, num_bytes: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    save_file({"a": torch.from_numpy(numpy.arange(40, dtype=numpy.float32))}, folder / "a.safetensors")
    whole = (folder / "a.safetensors").read_bytes()
    (folder / "a.safetensors").write_bytes(whole[: min(num_bytes, len(whole) - 1)])
    with pytest.raises(CheckpointError, match=r"^a.safetensors: "):
        SafetensorsFile(folder / "a.safetensors")
