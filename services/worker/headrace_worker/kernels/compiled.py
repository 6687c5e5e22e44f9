"""Ahead-of-time compilation of every case for real cards, without one: registers, stack and shared memory of each.

Needs no driver. Must run in a process without TRITON_INTERPRET. `python -m headrace_worker.kernels.compiled [WORD]`
prints the table and exits with 1 if any case spills.
"""

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace_worker.kernels.case import FP8_TARGETS, TARGETS, Case

MODULES = (
    "rms_norm",
    "silu_mul",
    "rope_kv",
    "logprobs",
    "penalties",
    "draw",
    "quantize_rows",
    "int4_product",
    "paged_decode",
    "paged_prefill",
)
_WARP = 32
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Compiled:
    """One case on one card: registers per thread, bytes of stack (spills) and local memory, shared memory per block."""

    case: Case
    target: int
    num_registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int

    @property
    def spills(self) -> bool:
        return self.stack_bytes > 0 or self.local_bytes > 0


def all_cases() -> Iterator[Case]:
    """Of every module, in order."""
    for name in MODULES:
        module: ModuleType = importlib.import_module(f"headrace_worker.kernels.{name}")
        yield from module.cases()


def compile_case(case: Case, target: int) -> Compiled:
    """Raises what the compiler raises."""
    names = case.kernel.arg_names
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned}
    signature = {**case.signature, **dict.fromkeys(case.constants, "constexpr")}
    source = ASTSource(case.kernel, signature=signature, constexprs=dict(case.constants), attrs=aligned)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    built = triton.compile(source, target=GPUTarget("cuda", target, _WARP), options=options)
    found = _USAGE.search(_resource_usage(built.asm["cubin"]))
    assert found, "cuobjdump says nothing of registers"
    registers, stack, _, local = map(int, found.groups())
    return Compiled(case, target, registers, stack, local, built.metadata.shared)


def _resource_usage(cubin: bytes) -> str:
    """Of the one function in it, as the tool in Triton's package tells it."""
    from triton.backends import nvidia

    tool = Path(nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return done.stdout


def table(rows: list[Compiled]) -> str:
    """Markdown: one line per case, one column per card."""
    targets = sorted({row.target for row in rows})
    by_case: dict[str, dict[int, Compiled]] = {}
    for row in rows:
        by_case.setdefault(row.case.name, {})[row.target] = row
    head = "| kernel | " + " | ".join(f"sm_{target}" for target in targets) + " |"
    lines = [head, "|---" * (len(targets) + 1) + "|"]
    for name, found in by_case.items():
        cells = (_cell(found.get(target)) for target in targets)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Compiled | None) -> str:
    if row is None:
        return "-"
    spilled = f", **{row.stack_bytes + row.local_bytes} B spilled**" if row.spills else ""
    return f"{row.num_registers} reg, {row.shared_bytes / 1024:.1f} KiB{spilled}"


def first_of_each(cases: Iterable[Case]) -> list[Case]:
    """One case per kernel; of those that have another one for other cards, these too."""
    found: dict[object, Case] = {}
    for case in cases:
        found.setdefault((case.kernel, case.targets if case.targets != FP8_TARGETS else TARGETS), case)
    return list(found.values())


def main() -> None:
    """`--first`: one case of each kernel; any other word: cases whose name has it."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    cases = first_of_each(all_cases()) if word == "--first" else [case for case in all_cases() if word in case.name]
    rows = [compile_case(case, target) for case in cases for target in case.targets]
    print(table(rows))
    sys.exit(any(row.spills for row in rows))


if __name__ == "__main__":
    main()
