"""docs/fleet.md says what the schema says."""

import dataclasses

from headrace_controlplane.fleet.pools import Pool
from tools import fleet_docs


def test_the_page_is_fresh() -> None:
    assert fleet_docs.PATH.read_text("utf-8") == fleet_docs.text(), "run: python tools/fleet_docs.py"


def test_every_setting_of_a_pool_is_on_it() -> None:
    page = fleet_docs.text()
    for field in dataclasses.fields(Pool):
        assert f"| `{field.name}` |" in page
        assert field.metadata["help"] in page
