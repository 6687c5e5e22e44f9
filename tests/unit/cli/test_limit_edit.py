"""A limit is changed where it stands: the file means what was wanted, and every other line is as it was."""

import difflib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace_cli.limit_edit import Limit, changed_content, changed_text

BLOCK = """\
# Who pays.
tenants:
  acme:  # the largest
    prices: {m: {input: 1}}
    limits:
      - {name: rpm, capacity: 60}  # agreed in May
      # tokens of a minute
      - name: tpm
        capacity: 1000  # for now
        scope: model
        subject: m

      - {name: spend_per_day, capacity: 5}
    # and nobody else

  dev: {}  # free
models: {m: {source: scripted}}  # last
"""
FLOW = "tenants: {acme: {limits: [{name: rpm, capacity: 60}, {name: tpm, capacity: 1}]}, dev: {}}  # one line\n"
EMPTY = """\
tenants:
  acme:
  dev: ~  # nothing
  full:
    limits: []  # none
  some:
    # first
    slo_class: x
"""


def limit(tenant: str, name: str, capacity: float | None, scope: str = "tenant", subject: str = "") -> Limit:
    return Limit(tenant, name, scope, subject, capacity)


def changes(before: str, wanted: Limit) -> list[str]:
    """Lines that went (-) and came (+); the meaning is the wanted one."""
    after = changed_text(before, wanted)
    assert after is not None
    assert yaml.safe_load(after) == changed_content(yaml.safe_load(before), wanted)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (
            limit("acme", "rpm", 90),
            [
                "-      - {name: rpm, capacity: 60}  # agreed in May",
                "+      - {name: rpm, capacity: 90}  # agreed in May",
            ],
        ),
        (
            limit("acme", "tpm", 2.5, "model", "m"),
            ["-        capacity: 1000  # for now", "+        capacity: 2.5  # for now"],
        ),
        (limit("acme", "tpm", 7), ["+      - {name: tpm, capacity: 7}"]),
        (limit("acme", "spend_per_day", None), ["-      - {name: spend_per_day, capacity: 5}"]),
        (limit("acme", "rpm", None), ["-      - {name: rpm, capacity: 60}  # agreed in May"]),
        (
            limit("acme", "tpm", None, "model", "m"),
            [
                *("-      - name: tpm", "-        capacity: 1000  # for now"),
                *("-        scope: model", "-        subject: m"),
            ],
        ),
        (
            limit("dev", "rpm", 1, "key", "a: b"),
            [
                "-  dev: {}  # free",
                "+  dev: {limits: [{name: rpm, scope: key, subject: 'a: b', capacity: 1}]}  # free",
            ],
        ),
    ],
)
def test_one_place_of_a_file_in_blocks_changes(wanted: Limit, lines: list[str]) -> None:
    assert changes(BLOCK, wanted) == lines


def test_what_is_added_stands_after_the_last_and_before_what_follows() -> None:
    after = changed_text(BLOCK, limit("acme", "concurrency", 3)) or ""
    assert "capacity: 5}\n      - {name: concurrency, capacity: 3}\n    # and nobody else" in after


@pytest.mark.parametrize(
    "wanted",
    [
        *(limit("acme", "rpm", 5), limit("acme", "rpm", None), limit("acme", "tpm", None)),
        *(limit("acme", "concurrency", 5), limit("dev", "rpm", 5)),
    ],
)
def test_a_file_on_one_line_keeps_what_is_behind_it(wanted: Limit) -> None:
    (_, line) = changes(FLOW, wanted)
    assert line.endswith("}  # one line")


@pytest.mark.parametrize("tenant", ["acme", "dev", "full", "some"])
def test_the_first_limit_of_a_tenant_finds_a_place(tenant: str) -> None:
    lines = changes(EMPTY, limit(tenant, "rpm", 5))
    assert sum(line.startswith("-") for line in lines) <= 1
    after = changed_text(EMPTY, limit(tenant, "rpm", 5)) or ""
    assert all(comment in after for comment in ("# nothing", "# none", "# first"))


@pytest.mark.parametrize("text", [BLOCK, FLOW, EMPTY])
def test_to_remove_what_is_not_there_changes_nothing(text: str) -> None:
    assert changes(text, limit("dev", "rpm", None)) == []


def test_the_last_limit_that_goes_leaves_none() -> None:
    text = "tenants:\n  dev:\n    limits:\n      - name: rpm  # why\n        capacity: 1\n    slo_class: x  # which\n"
    changes(text, limit("dev", "rpm", None))
    assert "# which" in (changed_text(text, limit("dev", "rpm", None)) or "")


@pytest.mark.parametrize(
    "text",
    [
        "a: &l [{name: rpm, capacity: 1}]\ntenants: {acme: {limits: *l}, dev: {limits: *l}}\n",
        "tenants: {acme: {limits: [{name: rpm, capacity: 1}, {name: rpm, capacity: 2}]}}\n# twice, and both go\n",
        "a: &t {acme: {limits: [{name: rpm, capacity: 1}]}}\ntenants: {<<: *t}\n",
    ],
)
def test_what_cannot_be_changed_in_place_is_left_to_the_caller(text: str) -> None:
    assert changed_text(text, limit("acme", "rpm", None)) is None


NAMES = st.sampled_from(["rpm", "tpm", "concurrency"])
ENTRIES = st.lists(st.fixed_dictionaries({"name": NAMES, "capacity": st.integers(0, 9)}), max_size=4)
TENANTS = st.dictionaries(
    st.sampled_from(["acme", "dev"]),
    st.one_of(st.none(), st.fixed_dictionaries({}, optional={"limits": ENTRIES, "slo_class": st.just("x")})),
    min_size=1,
)


@given(TENANTS, NAMES, st.one_of(st.none(), st.integers(0, 99)), st.sampled_from([True, False, None]))
def test_whatever_the_style_the_meaning_is_the_wanted_one(
    tenants: dict[str, object], name: str, capacity: int | None, flow: bool | None
) -> None:
    text = yaml.safe_dump({"tenants": tenants, "models": {}}, default_flow_style=flow, sort_keys=False)
    wanted = limit(next(iter(tenants)), name, capacity)
    after = changed_text(text, wanted)
    assert after is None or yaml.safe_load(after) == changed_content(yaml.safe_load(text), wanted)
