"""fleet.yaml: what is right is read, and everything that is wrong is told at once, with its path."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.fleet.file import MAX_BYTES, Fleet, default_text, parse
from headrace_controlplane.fleet.problems import InvalidFleet
from tests.unit.controlplane.fakes import SCRIPTED, scripted

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def problems(text: str) -> dict[str, str]:
    with pytest.raises(InvalidFleet) as caught:
        parse(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_the_default_fleet_is_one_small_model_on_cpu() -> None:
    fleet = parse(default_text())
    assert list(fleet.models) == ["smollm2-135m-instruct"]
    assert [(pool.device, pool.min) for pool in fleet.pools.values()] == [("cpu", 1)]
    assert fleet.classes[fleet.default_class].ttft_ms == 30_000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_every_example_is_valid(path: Path) -> None:
    assert parse(path.read_text("utf-8")).pools


def test_the_scripted_example_has_exactly_one_replica() -> None:
    fleet = parse(next(path for path in EXAMPLES if path.name == "scripted.yaml").read_text("utf-8"))
    assert list(fleet.models) == ["scripted"]
    assert [(pool.min, pool.most) for pool in fleet.pools.values()] == [(1, 1)]


def test_what_is_left_out_has_defaults() -> None:
    fleet = parse(SCRIPTED)
    assert fleet.default_class == "standard"
    assert list(fleet.tenants) == ["dev"]
    pool = fleet.pools["scripted"]
    assert (pool.min, pool.most, pool.hold_s, pool.launcher) == (1, 1, 120.0, "process")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("min", '"two"', 'expected an integer >= 0, got "two"'),
        ("min", "true", "expected an integer >= 0, got true"),
        ("min", "1.0", "expected an integer >= 0, got 1.0"),
        ("min", "5000", "expected an integer >= 0 and <= 1000, got 5000"),
        ("max", "0", "expected an integer >= min (1), got 0"),
        # B49: what a worker refuses to start with is refused here too.
        ("max_context_tokens", "0", "expected an integer >= 1 or nothing, got 0"),
        ("max_context_tokens", "-1", "expected an integer >= 1 or nothing, got -1"),
        ("max_chunk_tokens", "0", "expected an integer >= 1, got 0"),
        ("page_tokens", "0", "expected an integer, a multiple of 16, >= 16, got 0"),
        ("page_tokens", "24", "expected an integer, a multiple of 16, >= 16, got 24"),
        ("max_batch_tokens", "100", "must hold max_running and one page: expected an integer >= 272, got 100"),
        ("hold_s", ".nan", "expected a number >= 0, got nan"),
        ("hold_s", ".inf", "expected a number >= 0, got inf"),
        ("tp", "2", "the scripted engine is one process: expected 1"),
        ("pp", "65", "expected an integer >= 1 and <= 64, got 65"),
        ("warm_reserve", "2", "expected an integer <= max (1), got 2"),
        ("price_per_gpu_hour", "-1", "expected a number >= 0, got -1"),
        ("start_up_s", "0", "expected a number >= 0.001 or nothing, got 0"),
        ("canary", "true", "scripted has no revision on trial"),
        ("device", "tpu", 'expected one of cpu, cuda, got "tpu"'),
        ("model", "nobody", 'no model "nobody"; known are scripted'),
        ("classes", "standard", 'expected a list of text, got "standard"'),
        ("max_sequence_tokens", "9, max_context_tokens: 8", "expected an integer <= max_context_tokens (8), got 9"),
        ("kv_bytes", "9, num_pages: 8", "give either num_pages or kv_bytes"),
        ("colour", "red", None),
    ],
)
def test_a_wrong_setting_is_told_with_its_path(setting: str, value: str, message: str | None) -> None:
    text = scripted(**{setting: value}).replace("model: scripted, engine: scripted, model", "engine: scripted, model")
    found = problems(text)
    assert list(found) == [f"pools.scripted.{setting}"]
    assert message is None or found[f"pools.scripted.{setting}"] == message


def test_a_pool_says_what_it_costs_and_what_it_takes_to_start() -> None:
    text = SCRIPTED.replace("engine: scripted", "engine: torch, device: cuda, tp: 4, pp: 2, card: h200-141gib")
    text = text.replace("tp: 4", "tp: 4, price_per_gpu_hour: 3.5, start_up_s: 90, warm_reserve: 1, span_domains: true")
    pool = parse(text.replace("{source: scripted}", "{source: 'dir:/m'}")).pools["scripted"]
    assert (pool.num_devices, pool.price_per_gpu_hour, pool.start_up_s) == (8, 3.5, 90.0)
    assert (pool.card, pool.warm_reserve, pool.span_domains) == ("h200-141gib", 1, True)


CANARY = """
models:
  m: {source: "dir:/one", revision: r1, canary: {revision: r2, source: "dir:/two", share: 0.2}}
pools:
  old: {model: m}
  new: {model: m, canary: true}
"""


def test_pools_of_a_canary_serve_the_revision_on_trial() -> None:
    fleet = parse(CANARY)
    assert [(fleet.revision_of(name), fleet.source_of(name)) for name in ("old", "new")] == [
        *(("r1", "dir:/one"), ("r2", "dir:/two")),
    ]
    same = parse(CANARY.replace('source: "dir:/two", ', ""))
    assert same.source_of("new") == "dir:/one"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("revision: r2", "revision: r1", "models.m.canary.revision"),
        (", canary: true", "", "models.m.canary"),
        ("share: 0.2", "share: 1.5", "models.m.canary.share"),
        ("revision: r2, ", "", "models.m.canary.revision"),
        ('"dir:/two"', "scripted", "pools.new.engine"),
    ],
)
def test_a_canary_that_cannot_be_is_refused(old: str, new: str, path: str) -> None:
    assert list(problems(CANARY.replace(old, new))) == [path]


def test_all_problems_are_reported_at_once() -> None:
    found = problems("""
models: {a: {source: scripted, aliases: [b]}, b: {source: nowhere}}
pools:
  one: {engine: scripted, page_tokens: 24, min: -1}
  Two: {model: a}
classes: {fast: {ttft_ms: 0}}
tenants: {t: {limits: [{name: rpm, capacity: 1}, {name: apples, capacity: 1}]}}
surprise: 1
""")
    assert set(found) == {
        *("models.b.source", "pools.one.model", "pools.one.page_tokens", "pools.one.min", "pools.Two"),
        *("classes.fast.ttft_ms", "tenants.t.limits[1].name", "surprise"),
    }


def test_names_must_be_known_across_sections() -> None:
    found = problems("""
models:
  a: {source: scripted, aliases: [b, x]}
  b: {source: "dir:/models/b", aliases: [x]}
pools:
  one: {model: a, engine: torch, classes: [slow]}
classes:
  fast: {ttft_ms: 700, default: true}
  also: {ttft_ms: 700, default: true}
tenants:
  t: {slo_class: none, models: [c], rules: [r], limits: [{name: rpm, capacity: 1, scope: model, subject: d}]}
prices:
  e: {}
safety:
  rules: {g: {detector: guard, guard_model: f}}
""")
    assert set(found) == {
        *("models.a.aliases[0]", "models.b.aliases[0]", "pools.one.engine", "pools.one.classes[0]", "classes"),
        *("tenants.t.slo_class", "tenants.t.models[0]", "tenants.t.rules[0]", "tenants.t.limits[0].subject"),
        *("prices.e", "safety.rules.g.guard_model"),
    }


def test_a_name_that_is_no_plain_word_is_quoted_in_the_path() -> None:
    assert 'models."a.b".source' in problems('models: {"a.b": {}}\npools: {}')


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("models: {a: {source: scripted}}\nmodels: {}", "given twice"),
        ("a: &x [1]\nb: *x", "anchors"),
        ("[" * 100 + "]" * 100, "nested too deeply"),
        ("a: [", "expected"),
        ("a: 2024-99-99", "not YAML"),
        ("\x00", "not YAML"),
        ("#" * (MAX_BYTES + 1), "bytes"),
        ("- 1", "expected a mapping"),
        ("", "is missing"),
        ("? {a: 1}\n: 2", ""),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_what_is_no_fleet_is_one_sentence(text: str, part: str) -> None:
    assert part in " ".join(problems(text).values())


def test_a_safety_rule_must_be_able_to_work() -> None:
    rule = SCRIPTED + "safety: {rules: {r: {detector: regex, values: ['(']}, b: {detector: blocklist}}}"
    assert set(problems(rule)) == {"safety.rules.r.values[0]", "safety.rules.b.values"}


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", "a{2000}", "a*", "("])
def test_a_pattern_that_policy_could_not_use_is_refused_at_apply(pattern: str) -> None:
    rule = SCRIPTED + f"safety: {{rules: {{r: {{detector: regex, values: [ok, '{pattern}']}}}}}}"
    assert set(problems(rule)) == {"safety.rules.r.values[1]"}


def test_a_rule_that_cannot_redact_is_refused_at_apply() -> None:
    rules = (
        "g: {detector: guard, guard_model: scripted, action: redact}, i: {detector: pii, side: input, action: redact}"
    )
    assert set(problems(SCRIPTED + f"safety: {{rules: {{{rules}}}}}")) == {
        "safety.rules.g.action",
        "safety.rules.i.action",
    }


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=10,
)
_near = st.fixed_dictionaries(
    {},
    optional={
        name: st.dictionaries(st.sampled_from(["a", "b", "x y"]), _values, max_size=2) | _values
        for name in ("models", "pools", "classes", "tenants", "prices", "safety", "rollout")
    },
)


@given(_near)
def test_no_file_does_anything_but_be_read_or_refused(content: dict[str, Any]) -> None:
    try:
        assert isinstance(parse(yaml.safe_dump(content)), Fleet)
    except InvalidFleet as error:
        assert all(problem.message for problem in error.problems)
