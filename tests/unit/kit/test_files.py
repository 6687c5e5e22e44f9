"""Whole-file replacement leaves the old content, the new, and nothing beside them."""

from pathlib import Path

import pytest

from headrace_kit.files import write_atomically


def test_a_file_is_replaced_whole_and_keeps_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "fresh" / "book"
    write_atomically(path, b"a longer first one")
    write_atomically(path, b"second")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"second", 0o600)
    assert list(path.parent.iterdir()) == [path]


def test_what_could_not_be_put_in_place_leaves_nothing_beside(tmp_path: Path) -> None:
    taken = tmp_path / "book"
    taken.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(taken, b"content")
    assert list(tmp_path.iterdir()) == [taken]
