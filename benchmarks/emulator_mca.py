"""What LLVM's machine-code analyser predicts for the loop of the chain kernel, on AVX2 and AVX-512.

`python -m benchmarks.emulator_mca OBJECTS` with the folder that holds the two compiled kernel
files, for example build/cpp/CMakeFiles/bitwitness_mma.dir/src. Needs objdump and an llvm-mca of
LLVM 16 or later, which knows Zen 4 (named by the variable LLVM_MCA, "llvm-mca" otherwise). A
prediction knows nothing of caches, memory, frequency or branches.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_L = 16
_VECTORS = 4
_ROWS = 2
_STEPS = 8  # in 128 products: what one call runs
_ITERATIONS = 200
# Vectors of fused multiply-adds that start in a cycle, and their lanes: what SGEMM runs at best.
_PROCESSORS = {"znver4": (2, 8), "icelake-server": (2, 16), "sapphirerapids": (2, 16)}
_INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\t(\S.*?)\s*(?:#.*)?$")
_JUMP = re.compile(r"^(j\w+)\s+([0-9a-f]+)\b.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One compiled file: its name, the operations struct in it, and lanes of a vector."""

    file: str
    operations: str
    lanes: int


_KERNELS = (
    Kernel(file="mma_kernels_avx2.cpp.o", operations="Avx2", lanes=8),
    Kernel(file="mma_kernels_avx512.cpp.o", operations="Avx512", lanes=16),
)


def _function(listing: str, operations: str) -> list[tuple[int, str]]:
    """Return the instructions of the kernel for F = 25, L = 16, two rows in turn."""
    name = rf"chain_rows<\S.*{operations}, {_VECTORS}, .*Shape<{_L}, 1, .*1, .*0>, {_ROWS}>"
    inside = False
    found: list[tuple[int, str]] = []
    for line in listing.splitlines():
        if line.endswith(">:"):
            inside = re.search(name, line) is not None and not found
        elif inside and (match := _INSTRUCTION.match(line)):
            found.append((int(match[1], 16), match[2]))
    return found


def _loop(instructions: list[tuple[int, str]]) -> list[str]:
    """Return the smallest loop that has all conversions of the steps of two rows."""
    loops = []
    for at, (address, text) in enumerate(instructions):
        jump = _JUMP.match(text)
        if jump is None or int(jump[2], 16) >= address:
            continue
        body = [t for a, t in instructions[: at + 1] if a >= int(jump[2], 16)]
        if sum("vcvttps2dq" in t for t in body) >= _ROWS * _L * _VECTORS:
            loops.append([_JUMP.sub(r"\1 loop", t) for t in body])
    return min(loops, key=len)


def _cycles(loop: list[str], processor: str) -> float:
    """Return the predicted cycles of one iteration: one step of two rows."""
    command = [
        os.environ.get("LLVM_MCA", "llvm-mca"),
        f"-mcpu={processor}",
        f"-iterations={_ITERATIONS}",
    ]
    source = "loop:\n" + "\n".join(loop) + "\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if total is None:
        msg = "llvm-mca printed no total"
        raise RuntimeError(msg)
    return int(total[1]) / _ITERATIONS


def main() -> None:
    """Print predicted cycles of a step, and the share of SGEMM that follows."""
    objects = Path(sys.argv[1])
    print("llvm-mca, one step of F = 25, L = 16 over a panel: cycles, and the share of peak SGEMM")
    for kernel in _KERNELS:
        command = ["objdump", "-dC", "--no-show-raw-insn", str(objects / kernel.file)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        loop = _loop(_function(listing, kernel.operations))
        for processor, (fmas, lanes) in _PROCESSORS.items():
            cycles = _cycles(loop, processor) / _ROWS
            products = _L * _VECTORS * kernel.lanes
            share = products / cycles / (fmas * lanes)
            print(
                f"  {kernel.operations:7} {processor:15} {len(loop) // _ROWS:4} instructions"
                f"  {cycles:6.1f} cycles  {products / cycles:5.2f} products a cycle  {share:.3f}"
            )


if __name__ == "__main__":
    main()
