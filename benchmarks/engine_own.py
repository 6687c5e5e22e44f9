"""Our engine as a program that answers measurements, one JSON line in, one out, as the peers' programs do.

`{"prompts": [[id, ...], ...], "num_out": n}` is answered `{"s": seconds, "ids": [[id, ...], ...]}`;
`{"scenario": name}` by that scenario's numbers.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks import engine_scenarios
from benchmarks.engine_driver import OwnModel


def generate(model: OwnModel, prompts: list[list[int]], num_out: int) -> dict[str, object]:
    """All prompts at once, greedy, exactly `num_out` tokens each, on an engine without a cached prefix."""
    drive = model.start()
    started_s = time.perf_counter()
    handles = [drive.submit(prompt, num_out) for prompt in prompts]
    drive.run()
    took_s = time.perf_counter() - started_s
    return {"s": took_s, "ids": [drive.ids[handle] for handle in handles]}


def main() -> None:
    source, state_dir = sys.argv[1], Path(sys.argv[2])
    model = OwnModel(source, state_dir)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "scenario" in asked:
            answer: dict[str, object] = dict(engine_scenarios.SCENARIOS[asked["scenario"]](model))
        else:
            answer = generate(model, asked["prompts"], asked["num_out"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
