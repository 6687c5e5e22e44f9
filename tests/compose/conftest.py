"""One stack for the tests of this folder, taken down at the end; skipped where no engine is found."""

from collections.abc import Iterator

import pytest

from tests.compose.stack import Stack, copy_tree, missing_engine


@pytest.fixture(scope="module")
def empty_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A copy of the tree in which nothing was built or started."""
    if reason := missing_engine():
        pytest.skip(f"no Docker engine with Compose v2: {reason}")
    folder = tmp_path_factory.mktemp("tree")
    copy_tree(folder)
    stack = Stack(folder)
    stack.remove()
    try:
        yield stack
    finally:
        stack.remove()


@pytest.fixture(scope="module")
def stack(empty_stack: Stack) -> Stack:
    empty_stack.start()
    return empty_stack
