import dataclasses
from typing import Any

import pytest

from headrace_kit import settings
from tests.contract.flag_lists import GOLDEN, config_type, flag_list, services


@pytest.mark.parametrize("service", services())
def test_a_service_has_exactly_the_flags_of_its_golden_file(service: str) -> None:
    golden = GOLDEN / f"{service}.txt"
    assert golden.exists(), f"write {golden.name} with: python -m tests.contract.flag_lists"
    assert flag_list(service) == golden.read_text("utf-8")


def test_every_golden_file_belongs_to_a_service() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == services()


@pytest.mark.parametrize("service", services())
def test_the_kit_can_load_every_field_and_each_has_a_meaning(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.load(config_type(service), service=service, argv=["--help"], environ={})
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    fields: Any = dataclasses.fields(config_type(service))
    assert [f.name for f in fields if not f.metadata.get("help") or f"--{f.name.replace('_', '-')}" not in shown] == []


@pytest.mark.parametrize("service", services())
def test_every_service_declares_what_its_process_needs(service: str) -> None:
    names = {field.name for field in dataclasses.fields(config_type(service))}
    needed = {"grpc_listen", "http_listen", "service_token_file", "state_dir", "announce", "drain_s", "log_level"}
    assert needed <= names
