from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_kit import settings


@dataclass(frozen=True)
class Config:
    """Settings of the tests."""

    state_dir: Path
    max_waiting: int = field(default=8, metadata={"help": "places in the waiting room, 100 % of them"})
    drain_s: float = 30.0
    chunked: bool = False
    origins: tuple[str, ...] = ()
    mode: Literal["fast", "safe"] = "safe"
    redis_url: str | None = None
    admin_key: str = field(default="", repr=False, metadata={"secret": True})

    def __post_init__(self) -> None:
        if self.max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1, not {self.max_waiting}")


def load(*argv: str, **environ: str) -> Config:
    return settings.load(
        Config,
        service="worker",
        argv=["--state-dir=/s", *argv],
        environ={f"HEADRACE_WORKER_{name}": value for name, value in environ.items()},
    )


def refused(capsys: pytest.CaptureFixture[str], *argv: str, **environ: str) -> str:
    with pytest.raises(SystemExit) as caught:
        load(*argv, **environ)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headrace-worker: ") and err.count("\n") == 1
    return err.removeprefix("headrace-worker: ").strip()


def test_defaults_hold_where_nothing_is_given() -> None:
    assert load() == Config(state_dir=Path("/s"))


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('max_waiting = 1\ndrain_s = 1\nmode = "fast"\norigins = ["a", "b"]\nchunked = true\n')
    config = load("--max-waiting", "3", CONFIG=str(file), MAX_WAITING="2", DRAIN_S="2.5")
    assert (config.max_waiting, config.drain_s, config.mode) == (3, 2.5, "fast")
    assert (config.origins, config.chunked) == (("a", "b"), True)


def test_the_config_flag_wins_over_its_variable(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("max_waiting = 1")
    (tmp_path / "b.toml").write_text("max_waiting = 2")
    assert load("--config", str(tmp_path / "b.toml"), CONFIG=str(tmp_path / "a.toml")).max_waiting == 2


@given(
    st.integers(1, 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    # argparse drops a value that is exactly two dashes.
    st.lists(st.text("abc-.:/", min_size=1), max_size=3).filter(lambda words: ",".join(words) != "--"),
)
def test_flag_and_environment_mean_the_same(waiting: int, drain_s: float, chunked: bool, origins: list[str]) -> None:
    values = {
        "max_waiting": str(waiting),
        "drain_s": repr(drain_s),
        "chunked": str(chunked),
        "origins": ",".join(origins),
    }
    by_flag = load(*(f"--{name.replace('_', '-')}={value}" for name, value in values.items()))
    by_environment = load(**{name.upper(): value for name, value in values.items()})
    assert by_flag == by_environment == Config(Path("/s"), waiting, drain_s, chunked, tuple(origins))


@pytest.mark.parametrize(
    "argv, chunked",
    [
        ((), False),
        (("--chunked",), True),
        (("--chunked=off",), False),
        (("--chunked", "true"), True),
        (("--chunked", "--mode=fast"), True),
    ],
)
def test_a_switch_needs_no_value(argv: tuple[str, ...], chunked: bool) -> None:
    assert load(*argv).chunked is chunked


def test_an_empty_value_clears_an_optional_field() -> None:
    assert load("--redis-url=", REDIS_URL="redis://x").redis_url is None


@pytest.mark.parametrize(
    "argv, sentence",
    [
        (("--max-wait", "3"), "unknown flag --max-wait"),
        (("--bogus=1",), "unknown flag --bogus"),
        (("stray",), "unknown flag stray"),
        (("--max_waiting=3",), "unknown flag --max_waiting"),
        (("--max-waiting=3.5",), "--max-waiting: '3.5' is not an integer"),
        (("--max-waiting=",), "--max-waiting: '' is not an integer"),
        (("--drain-s=nan",), "--drain-s: 'nan' is not a finite number"),
        (("--drain-s=inf",), "--drain-s: 'inf' is not a finite number"),
        (("--chunked=maybe",), "--chunked: 'maybe' is not true or false"),
        (("--mode=slow",), "--mode: 'slow' is not one of fast, safe"),
        (("--max-waiting=0",), "max_waiting must be at least 1, not 0"),
        (("--config=/absent.toml",), "cannot read the configuration file /absent.toml"),
    ],
)
def test_a_bad_flag_is_one_sentence_that_names_it(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], sentence: str
) -> None:
    assert refused(capsys, *argv).startswith(sentence)


def test_a_flag_without_its_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-waiting" in refused(capsys, "--max-waiting")


def test_an_unknown_or_bad_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, MAX_WAIT="3") == "unknown environment variable HEADRACE_WORKER_MAX_WAIT"
    assert refused(capsys, max_waiting="3") == "unknown environment variable HEADRACE_WORKER_max_waiting"
    assert refused(capsys, MAX_WAITING="x") == "HEADRACE_WORKER_MAX_WAITING: 'x' is not an integer"


def test_variables_of_other_services_are_left_alone() -> None:
    config = settings.load(Config, service="worker", argv=["--state-dir=/s"], environ={"HEADRACE_ROUTER_X": "1"})
    assert config == Config(Path("/s"))


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("max_wait = 3", "unknown key max_wait in "),
        ('max_waiting = "x"', "max_waiting in "),
        ("max_waiting = 3.0", "max_waiting in "),
        ("max_waiting = true", "max_waiting in "),
        ("drain_s = true", "drain_s in "),
        ("chunked = 1", "chunked in "),
        ("origins = [1]", "origins in "),
        ("redis_url = 1", "redis_url in "),
        ("mode = 1", "mode in "),
        ("[max_waiting]", "max_waiting in "),
        ("max_waiting", "cannot read the configuration file "),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    assert refused(capsys, "--config", str(tmp_path / "f.toml")).startswith(sentence)


def test_a_missing_required_field_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.load(Config, service="worker", argv=[], environ={})
    assert caught.value.code == 2
    assert capsys.readouterr().err == "headrace-worker: --state-dir (or HEADRACE_WORKER_STATE_DIR) is required\n"


def test_help_shows_every_field_with_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--help")
    words = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for name in Config.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in words and f"HEADRACE_WORKER_{name.upper()}" in words
    assert "places in the waiting room, 100 % of them" in words and "8" in words and "required" in words


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--version")
    assert (caught.value.code, capsys.readouterr().out) == (0, f"headrace-worker {settings.version('worker')}\n")


def test_secrets_are_masked_where_a_configuration_is_shown() -> None:
    config = load("--admin-key=xyzzy")
    assert config.admin_key == "xyzzy"
    assert "xyzzy" not in repr(config) and settings.describe(config)["admin_key"] == "***"
    assert settings.describe(load())["admin_key"] == ""


def test_a_secret_that_its_repr_would_show_is_our_own_mistake() -> None:
    @dataclass(frozen=True)
    class Leaky:
        key: str = field(default="", metadata={"secret": True})

    with pytest.raises(AssertionError, match="secret field key needs repr=False"):
        settings.load(Leaky, service="x", argv=[], environ={})
