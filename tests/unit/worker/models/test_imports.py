"""A GPU machine has Python and torch; all else is imported where it is used."""

import subprocess
import sys

PROGRAM = """
import sys
for name in "grpc google redis opentelemetry gguf huggingface_hub tokenizers safetensors tqdm".split():
    sys.modules[name] = None
import headrace_worker.models.checkpoint
import headrace_worker.models.loader
import headrace_worker.attention.registry
"""


def test_models_import_with_torch_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
