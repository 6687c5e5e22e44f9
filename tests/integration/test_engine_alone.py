"""A GPU machine runs the engine by PYTHONPATH alone: nothing of ours but the worker, and no optional library."""

import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).parents[2] / "services/worker"

# Only libraries that such a machine has beside torch stay importable; ours come from PYTHONPATH.
SCRIPT = """
import importlib.util, pkgutil, sys

ABSENT = set("grpc google redis opentelemetry prometheus_client starlette uvicorn xgrammar gguf".split())
ABSENT |= {"huggingface_hub", "headrace", "headrace_kit"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for below in "engine execution transfer models layers attention kernels parallel quant scheduling perf config".split():
    name = f"headrace_worker.{below}"
    if importlib.util.find_spec(name) is None:
        continue
    module = importlib.import_module(name)
    for child in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(child.name)
print(sum(name.startswith("headrace_worker.") for name in sys.modules))
"""


def test_the_engine_and_everything_below_it_import_without_the_rest() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(WORKER), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, check=False, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10
