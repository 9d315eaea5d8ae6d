"""Each GEMM profile beside cuBLAS in bf16 and in FP32 with TF32 off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.timing import milliseconds
from trainer.kernels import Runtime
from trainer.kernels.gemm import gemm

SIZES = (1024, 2048, 4096, 8192)
SLOW_LIMIT = 4096  # the fp32 profile, on no tensor core, is left out above


def main(rt: Runtime) -> None:
    """Print TFLOP/s of the whole product, splitting included, and ratios to cuBLAS FP32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    print("products, N x N x N, TFLOP/s (times cuBLAS FP32)")
    for size in SIZES:
        a, b = (torch.randn(size, size, device=rt.torch_device) for _ in range(2))
        profiles = ("heal", "bf16", "exact", *(("fp32",) if size <= SLOW_LIMIT else ()))
        rows: dict[str, Callable[[], object]] = {
            "cuBLAS FP32": partial(torch.matmul, a, b),
            "cuBLAS bf16": partial(torch.matmul, a.bfloat16(), b.bfloat16()),
            **{f"profile {p}": partial(gemm, rt, a, b, p) for p in profiles},
        }
        with rt.deferred_checks():
            speeds = {n: 2e-9 * size**3 / milliseconds(run) for n, run in rows.items()}
        plain = speeds["cuBLAS FP32"]
        cells = [f"{name} {speed:7.1f} ({speed / plain:4.2f}x)" for name, speed in speeds.items()]
        print(f"  N = {size:5}  " + "  ".join(cells))
