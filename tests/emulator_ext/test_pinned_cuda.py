"""The pinned headers as CUDA source; needs a CUDA compiler and no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import emulator_ext

KERNELS = """
#include "bitwitness/philox.h"
#include "bitwitness/pinned_ops.h"
using namespace bitwitness;

extern "C" __global__ void every(const float* x, float* y) {
    const float a = x[threadIdx.x];
    const AdamW k = adamw_constants(a, x, a, a, a, a);
    const AdamWElement next = adamw_element(k, a, a, a, a);
    y[0] = bitwitness::exp2(a);
    y[1] = bitwitness::log2(a);
    y[2] = bitwitness::tanh(a);
    y[3] = bitwitness::erf(a);
    y[4] = bitwitness::sigmoid(a);
    y[5] = exp2_shifted(mul_rn(a, softmax_constant(a)), softmax_shift(order_key(a)));
    y[6] = unit_interval(philox_block(1, 2, 3, 4).word[0]);
    y[7] = rms_reciprocal(a, a, a);
    y[8] = swiglu_backward_element(a, a, a).first;
    y[9] = cross_entropy_row(a, a, a);
    y[10] = next.p;
}

extern "C" __global__ void unfused(const float* x, float* y) {
    y[0] = add_rn(mul_rn(x[0], x[1]), x[2]);
}
"""


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """Compile the kernels with contraction left on, as a careless build would."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    source = tmp_path_factory.mktemp("cuda") / "kernels.cu"
    source.write_text(KERNELS)
    include = Path(emulator_ext.__file__).parent / "include"
    target = source.with_suffix(".ptx")
    flags = ["-std=c++17", "-arch=sm_90", "--fmad=true", "-Werror=all-warnings", "-ptx"]
    subprocess.run([nvcc, *flags, f"-I{include}", source, "-o", target], check=True)
    return target.read_text()


def test_no_approximate_or_flushing_instruction(ptx):
    """On the GPU every operation is correctly rounded and keeps subnormals."""
    assert "div.rn.f64" in ptx
    assert not re.findall(r"\S*\.(?:approx|ftz|full)\S*", ptx)


def test_products_and_sums_stay_apart(ptx):
    """A rounded product that is added is two instructions, even where contraction is allowed."""
    body = ptx[ptx.index(".entry unfused") :]
    assert re.findall(r"\b(mul|add|fma)\.rn\.f32", body) == ["mul", "add"]
