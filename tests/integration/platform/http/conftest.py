"""One platform for all of HTTP: nothing here breaks it."""

from collections.abc import Iterator

import pytest

from tests.integration.platform.http.http_client import Http
from tests.integration.platform.running_platform import Platform, running_platform


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running_platform(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


@pytest.fixture(scope="package")
def http(platform: Platform) -> Iterator[Http]:
    http = Http(platform)
    with http.client:
        yield http
