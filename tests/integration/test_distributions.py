"""Each distribution installs alone: with what it declares it imports, answers and starts, and torch is not there."""

import importlib.metadata
import json
import subprocess
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.clean_environment import SOURCES, CleanEnvironment, build_wheels, closure

SERVICES = ["gateway", "policy", "router", "controlplane", "worker"]
COMMANDS = {**{f"headrace-{service}": f"headrace-{service}" for service in SERVICES}, "headrace-cli": "headrace"}

# Nobody listens on port 1: a service starts without its peers, and is only not ready.
NOBODY = "127.0.0.1:1"
OWN_FLAGS = {
    "gateway": [
        *(f"--{peer}={NOBODY}" for peer in ("controlplane", "policy", "router")),
        *("--public-grpc-listen=127.0.0.1:0", "--public-http-listen=127.0.0.1:0"),
    ],
    "policy": [f"--controlplane={NOBODY}", "--redis=unix:///nowhere/redis.sock"],
    "router": [f"--controlplane={NOBODY}"],
    "controlplane": [],
    "worker": ["--engine=scripted"],
}
START_S = 30.0

# Parts of the worker that may need the extra `engine`, and what that brings.
NEEDS_ENGINE = "attention execution kernels layers models parallel quant transfer"
ENGINE_LIBRARIES = "gguf huggingface_hub jinja2 safetensors tokenizers torch triton"
# Parts of a distribution that need an extra, and the libraries that it brings.
TOLERATED = {"headrace-worker": (NEEDS_ENGINE, ENGINE_LIBRARIES), "headrace-controlplane": ("launcher", "ray")}

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
package, parts, libraries = importlib.import_module(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split()
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if module.name.split(".")[1] not in parts or error.name.partition(".")[0] not in libraries:
            raise
"""


# Straight to loopback, whatever proxy the environment names.
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def answers(address: str, path: str) -> bool:
    try:
        with LOOPBACK.open(f"http://{address}{path}", timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module", params=list(COMMANDS))
def environment(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, CleanEnvironment]:
    return request.param, CleanEnvironment(tmp_path_factory.mktemp(request.param) / "env", request.param, wheels)


def test_torch_is_absent(environment: tuple[str, CleanEnvironment]) -> None:
    _, clean = environment
    result = clean.run("python", "-c", "import torch")
    assert "ModuleNotFoundError: No module named 'torch'" in result.stderr
    assert "torch" not in clean.distributions


def test_another_service_is_absent(environment: tuple[str, CleanEnvironment]) -> None:
    name, clean = environment
    assert set(clean.distributions) & set(SOURCES) == {name, "headrace-kit", "headrace-protos"}


def test_every_import_is_declared(environment: tuple[str, CleanEnvironment]) -> None:
    name, clean = environment
    result = clean.run("python", "-c", IMPORT_EVERYTHING, name.replace("-", "_"), *TOLERATED.get(name, ("", "")))
    assert result.returncode == 0, result.stderr


def test_the_command_says_its_usage_and_version(environment: tuple[str, CleanEnvironment]) -> None:
    name, clean = environment
    usage, version = clean.run(COMMANDS[name], "--help"), clean.run(COMMANDS[name], "--version")
    assert (usage.returncode, version.returncode) == (0, 0), usage.stderr + version.stderr
    assert COMMANDS[name] in usage.stdout
    assert importlib.metadata.version(name) in version.stdout


def test_the_service_starts_lives_and_stops(environment: tuple[str, CleanEnvironment], tmp_path: Path) -> None:
    name, clean = environment
    service = name.removeprefix("headrace-")
    if service not in SERVICES:
        pytest.skip("not a service")
    announce, token, log = tmp_path / "announce.json", tmp_path / "token", tmp_path / "log"
    token.write_text("secret")
    flags = [f"--announce={announce}", f"--service-token-file={token}", f"--state-dir={tmp_path / 'state'}"]
    listen = ["--grpc-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]
    with clean.process(log, name, *flags, *listen, *OWN_FLAGS[service]) as process:
        wait_for(announce.exists, process, log)
        address = json.loads(announce.read_text())["http"]
        assert answers(address, "/healthz"), log.read_text()
        if service == "worker":
            wait_for(lambda: answers(address, "/readyz"), process, log)
        process.terminate()
        assert process.wait(START_S) == 0, log.read_text()


def test_the_engine_extra_brings_torch() -> None:
    assert "torch" in closure("headrace-worker", frozenset({"engine"}))


def test_the_contract_travels_with_its_sources(wheels: dict[str, Path], tmp_path: Path) -> None:
    clean = CleanEnvironment(tmp_path / "env", "headrace-protos", wheels)
    result = clean.run("python", "-c", "import headrace.v1 as v1; print(*v1.__path__)")
    files = {file.name for file in Path(result.stdout.strip()).iterdir()}
    sources = {file.stem for file in (Path(__file__).parents[2] / "protos/headrace/v1").glob("*.proto")}
    assert {f"{stem}{end}" for stem in sources for end in (".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py")} <= files


@pytest.mark.slow
@pytest.mark.parametrize("name", ["headrace-gateway", "headrace-worker"])
def test_it_installs_from_the_package_index_under_the_lock(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    lock = Path(__file__).parents[2] / "constraints.txt"
    install = ["pip", "install", "-q", "-c", str(lock), "--find-links", str(wheels[name].parent), str(wheels[name])]
    subprocess.run([tmp_path / "bin/python", "-m", *install], check=True, timeout=600)
    command = subprocess.run([tmp_path / f"bin/{name}", "--version"], check=True, capture_output=True, text=True)
    assert importlib.metadata.version(name) in command.stdout
    assert not list(tmp_path.glob("lib/python*/site-packages/torch"))
