"""The default model has 9 query and 3 KV heads: three ranks give the answers that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.worker.execution.engine_bench import EngineBench
from tests.unit.worker.models.smollm2 import fetch_smollm2
from tests.unit.worker.parallel.group_model import group

GOLDENS = Path(__file__).parents[1] / "models" / "goldens" / "smollm2.json"
ANSWERS: list[dict[str, Any]] = json.loads(GOLDENS.read_text())["answers"][:4]
NUM_TOKENS = 10


def test_three_ranks_serve_the_default_model() -> None:
    sizes = {"max_running": 8, "max_batch_tokens": 64, "max_chunk_tokens": 48, "num_pages": 64}
    with group(fetch_smollm2(), 3, **sizes) as runner:
        bench = EngineBench(runner)
        handles = [bench.submit(answer["prompt_ids"], NUM_TOKENS, ignore_eos=False) for answer in ANSWERS]
        bench.run()
        for handle, answer in zip(handles, ANSWERS, strict=True):
            ids = bench.ids(handle)
            assert ids == answer["output_ids"][: len(ids)]
        described = runner.describe()
        assert described.kv_bytes_per_token == 46_080
        # Every matrix once over all ranks, and the embedding once more as head.
        assert 651_000_000 < described.weight_bytes < 652_000_000
