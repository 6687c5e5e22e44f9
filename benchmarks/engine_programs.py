"""The programs that are measured: each a process that loads the model once, then answers one JSON line with another.

All of them compute the same float32 weights, which `export` writes in the form that the peers read.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import save_file

from headrace_worker.models.checkpoint import open_checkpoint

HERE = Path(__file__).parent
PEERS = HERE / "peers"
CACHE = HERE.parent / ".headrace" / "benchmark-models"
# As the worker starts its engine, and the same for all: threads that wait for one another sleep.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class ProgramError(Exception):
    """A program that does not run; the text ends with the last that it wrote."""


class Program:
    """One running program; a context manager, which ends it."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  lives as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE.parent,
            env={**os.environ, **_ENVIRONMENT},
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Raises ProgramError if the program has ended."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise ProgramError(self._last_words()) from error
        return self._read()

    def wait_ready(self) -> None:
        """Until the model is loaded; raises ProgramError if it cannot be."""
        assert self._read() == {"ready": True}, "the first line says that the program is ready"

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProgramError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait(10.0)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f"exit status {self._process.returncode}: {lines[-1] if lines else 'no word'}"[:300]

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def own_program(source: str) -> Program:
    return Program([sys.executable, "-m", "benchmarks.engine_own", source, str(CACHE)])


def peer_program(name: str, script: str, model: Path) -> Program:
    """A peer in its own environment. Raises ProgramError where that is not installed."""
    python = PEERS / name / "bin" / "python"
    if not (PEERS / name / ".installed").exists():
        raise ProgramError("not installed: make peers")
    return Program([str(python), str(HERE / script), str(model)])


def export(source: str, target: Path) -> None:
    """Write a Llama-like checkpoint as config.json and one safetensors file, float32."""
    checkpoint = open_checkpoint(source, CACHE / "models")
    config = checkpoint.config
    assert config.family == "llama" and config.tie_embeddings, "written for the default model"
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(content, indent=2))
    weights = checkpoint.weights
    tensors = {name: weights.read(name).float().contiguous().clone() for name in weights.tensors()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
