"""One scripted platform per test module; a module that breaks it waits until it has healed."""

from collections.abc import Iterator

import pytest

from tests.integration.platform.running_platform import Platform, running_platform


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running_platform(tmp_path_factory.mktemp("platform")) as platform:
        yield platform
