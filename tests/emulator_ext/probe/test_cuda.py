"""The GPU black box: its kernels compile for every architecture, and its absence is one line.

No test here runs on a GPU; layouts are compared with the PTX ISA's formulas.
"""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

from emulator_ext.probe import DeviceMissingError, open_cuda_devices
from emulator_ext.probe.cuda_source import KERNEL, Shape, shapes, source

NVRTC = importlib.util.find_spec("nvidia") is not None


def test_capabilities_offer_what_the_hardware_has() -> None:
    """Each generation offers its own shapes: none before Volta, FP8 from Ada on."""

    def labels(capability: int) -> set[str]:
        return {shape.instruction.label for shape in shapes(capability)}

    assert labels(61) == set()
    assert labels(70) == {"mma f16*f16+f32 k4", "mma f16*f16+f16 k4"}
    assert "mma f16*f16+f32 k8" in labels(75)
    assert "mma bf16*bf16+f32 k16" in labels(80)
    assert not any("e4m3" in label for label in labels(86))
    assert {"mma e4m3*e5m2+f16 k32", "mma f64*f64+f64 k4"} <= labels(89)


@pytest.mark.skipif(not NVRTC, reason="NVRTC of PyPI is not installed")
@pytest.mark.parametrize("capability", [75, 80, 89, 90, 100])
def test_kernels_compile(capability: int) -> None:
    """NVRTC compiles every shape that a compute capability offers."""
    from tests.trainer.kernels.nvrtc import compile_cubin

    text = "".join(
        source(shape).replace(KERNEL, f"{KERNEL}_{number}")
        for number, shape in enumerate(shapes(capability))
    )
    assert compile_cubin(text, (f"--gpu-architecture=sm_{capability}",))


def _ptx_k(shape: Shape, lane: int, element: int) -> int:
    """K of an element of B's fragment, PTX ISA: k16 of 16 bits, k8 of 32, k32 of 8 bits."""
    per = {"f16": 2, "bf16": 2, "tf32": 1}.get(shape.instruction.a, 4)
    register, within = divmod(element, per)
    return lane % 4 * per + within + register * 4 * per


@pytest.mark.parametrize("shape", [s for s in shapes(89) if s.layout == "words"], ids=str)
def test_a_row_lies_in_words_across_four_lanes(shape: Shape) -> None:
    """Loading word lane + 4 r into register r puts each k where the PTX ISA wants it."""
    text = source(shape)
    per = {"f16": 2, "bf16": 2, "tf32": 1}.get(shape.instruction.a, 4)
    for register in range(shape.b_registers):
        assert f"rb[{register}] = row_b[lane + {4 * register}];" in text
        # A's odd registers hold rows 8 to 15, which stay zero.
        assert f"ra[{2 * register}] = row_a[lane + {4 * register}];" in text
    placed = [
        _ptx_k(shape, lane, register * per + within)
        for register in range(shape.b_registers)
        for lane in range(4)
        for within in range(per)
    ]
    assert placed == list(range(shape.instruction.k))


def test_without_cupy_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without CuPy is told which extra to install."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceMissingError, match=r"install the extra 'gpu'"):
        open_cuda_devices()


def test_without_a_gpu_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy without a usable GPU gives its own reason, in one line."""

    def absent(index: int) -> dict[str, object]:
        raise RuntimeError("cudaErrorNoDevice: none\nand more lines")

    runtime = types.SimpleNamespace(getDeviceProperties=absent)
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(DeviceMissingError, match=r"^no GPU 0: cudaErrorNoDevice: none$"):
        open_cuda_devices()
