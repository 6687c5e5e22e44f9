"""What docs/security.md promises of our source: no foreign pickles, shells, unsafe loaders; templates in a sandbox."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("protos", "services", "tools") for path in (ROOT / folder).rglob("*.py"))
OURS = [path for path in SOURCES if "_pb2" not in path.name and "build" not in path.parts]

# Both ends are processes of one worker, joined by a pipe that nobody else can open.
PICKLES: Mapping[str, str] = {
    "services/worker/headrace_worker/wire.py": "between a worker and its engine's process",
    "services/worker/headrace_worker/execution/compile_trial.py": "between an engine and its trier of grammars",
    "services/worker/headrace_worker/execution/trial_process.py": "the other end of that",
    "services/worker/headrace_worker/execution/ranks.py": "between the first rank of a group and the others",
    "services/worker/headrace_worker/execution/rank.py": "the other end of that",
}
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    trees = [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))) for path in OURS]
    return [(name, node) for name, tree in trees for node in ast.walk(tree)]


@cache
def called() -> list[tuple[str, str, ast.Call]]:
    """Every call: where, and of what."""
    found = [(name, node) for name, node in nodes() if isinstance(node, ast.Call)]
    return [(f"{name}:{node.lineno}", dotted(node.func), node) for name, node in found]


def dotted(node: ast.AST) -> str:
    """The name as it is written, empty for what is none; much quicker than unparsing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(*names: str) -> list[str]:
    """Where a function of one of these dotted names is called."""
    return [place for place, function, _ in called() if function in names]


def test_only_a_workers_own_processes_exchange_pickles() -> None:
    importers = set()
    for name, node in nodes():
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if UNPICKLERS & {module.partition(".")[0] for module in modules}:
            importers.add(name)
    assert importers <= set(PICKLES)


@pytest.mark.parametrize("name", ["torch.load", "numpy.load", "np.load", "eval", "exec", "os.system", "os.popen"])
def test_nothing_that_runs_foreign_code_is_called(name: str) -> None:
    assert calls(name) == []


def test_no_command_goes_through_a_shell() -> None:
    keywords = [(file, node) for file, node in nodes() if isinstance(node, ast.keyword) and node.arg == "shell"]
    assert keywords == []


def test_yaml_is_loaded_safely() -> None:
    owners = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    classes = {node.name: [ast.unparse(base) for base in node.bases] for node in owners}
    for place, function, node in called():
        if function == "yaml.load":
            bases = classes[ast.unparse(node.args[1])]
            assert bases and all("SafeLoader" in base for base in bases), place


def test_templates_are_rendered_in_the_immutable_sandbox() -> None:
    assert calls("Environment", "jinja2.Environment", "SandboxedEnvironment") == []
    assert [place.partition(":")[0] for place in calls("ImmutableSandboxedEnvironment")]


def test_no_certificate_check_is_turned_off() -> None:
    unchecked = {"verify", "check_hostname"}
    keywords = [(file, node) for file, node in nodes() if isinstance(node, ast.keyword) and node.arg in unchecked]
    assert [file for file, node in keywords if ast.unparse(node.value) == "False"] == []
    assert calls("ssl._create_unverified_context") == []
