"""Every kernel compiles for real cards and spills nothing: one case of each here, all with make kernels-table."""

import os
import subprocess
import sys


def test_one_case_of_each_kernel_compiles_for_every_card_without_spills() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "headrace_worker.kernels.compiled", "--first"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ("rms_norm", "silu_mul", "rope_kv", "gather_logprobs", "penalise", "draw")
    for kernel in (*rows, "quantize_rows", "int4_product", "decode_split", "decode_join", "prefill"):
        assert f"| {kernel} " in done.stdout
    assert "sm_80 | sm_89 | sm_90 | sm_100" in done.stdout
