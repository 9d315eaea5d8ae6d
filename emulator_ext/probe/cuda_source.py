"""CUDA source that runs one mma.sync per dot product, for each shape of the PTX ISA used here.

Fragment layouts are those of the PTX ISA ("Matrix fragments for mma"). A warp computes one
useful element: lanes 0 to 3 hold row 0 of A and column 0 of B, lane 0 holds element (0, 0) of
C and D, and everything else is zero. A row's words lie in order across those lanes, so one
kernel text serves all shapes but the FP64 and the Volta one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from emulator_ext.probe.device import Instruction

Layout = Literal["words", "double", "volta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One mma.sync instruction.

    Attributes:
        ptx: the instruction without operands.
        a_registers, b_registers, c_registers: 32-bit registers a lane (64-bit for FP64).
        layout: how a row lies across lanes.

    """

    instruction: Instruction
    ptx: str
    a_registers: int
    b_registers: int
    c_registers: int
    layout: Layout = "words"


_HALF: Final = ("f32", "f16")
_FP8: Final = ("e4m3", "e5m2")
_BYTES: Final = ("s8", "u8")
_F64_CAPABILITY: Final = 80
_FP8_CAPABILITY: Final = 89


def shapes(capability: int) -> Iterator[Shape]:
    """Yield the shapes that a GPU of this compute capability (70, 75, 80, ...) executes."""
    if capability < 75:
        for acc in _HALF if capability >= 70 else ():
            yield _volta(acc)
        return
    k = 8 if capability < _F64_CAPABILITY else 16
    for acc in _HALF:
        yield _shape("f16", "f16", acc, k, f"m16n8k{k}")
    if capability < _F64_CAPABILITY:
        for name in _BYTES:
            yield _shape(name, name, "s32", 16, "m8n8k16")
        return
    yield _shape("bf16", "bf16", "f32", 16, "m16n8k16")
    yield _shape("tf32", "tf32", "f32", 8, "m16n8k8")
    for a in _BYTES:
        for b in _BYTES:
            yield _shape(a, b, "s32", 32, "m16n8k32")
    yield _double()
    if capability >= _FP8_CAPABILITY:
        for a in _FP8:
            for b in _FP8:
                for acc in _HALF:
                    yield _shape(a, b, acc, 32, "m16n8k32")


def _shape(a: str, b: str, acc: str, k: int, size: str) -> Shape:
    """Return a shape whose rows lie in words: four lanes, one or two words each."""
    words = k * {"f16": 2, "bf16": 2, "tf32": 4}.get(a, 1) // 16
    rows = 2 if size.startswith("m16") else 1
    return Shape(
        instruction=Instruction(a=a, b=b, accumulator=acc, k=k),
        ptx=f"mma.sync.aligned.{size}.row.col.{acc}.{a}.{b}.{acc}",
        a_registers=words * rows,
        b_registers=words,
        c_registers=rows * (1 if acc == "f16" else 2),
    )


def _double() -> Shape:
    return Shape(
        instruction=Instruction(a="f64", b="f64", accumulator="f64", k=4),
        ptx="mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        a_registers=1,
        b_registers=1,
        c_registers=2,
        layout="double",
    )


def _volta(acc: str) -> Shape:
    return Shape(
        instruction=Instruction(a="f16", b="f16", accumulator=acc, k=4),
        ptx=f"mma.sync.aligned.m8n8k4.row.col.{acc}.f16.f16.{acc}",
        a_registers=2,
        b_registers=2,
        c_registers=8 if acc == "f32" else 4,
        layout="volta",
    )


KERNEL: Final = "probe_mma"

_TEMPLATE: Final = """
// One warp an input: d[i] = c[i] + row i of a . row i of b, through {ptx}.
extern "C" __global__ void {kernel}(const {word}* a, const {word}* b, const {c_type}* c,
                                    {c_type}* d, int inputs) {{
    const int warp = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32u);
    const int lane = (int)(threadIdx.x % 32u);
    if (warp >= inputs) return;  // a warp leaves as a whole
    {word} ra[{a_count}] = {{}};
    {word} rb[{b_count}] = {{}};
    {word} rc[{c_count}] = {{}};
    {word} rd[{c_count}] = {{}};
    const {word}* row_a = a + (long long)warp * {row_words};
    const {word}* row_b = b + (long long)warp * {row_words};
    if (lane < {lanes}) {{
{loads}
    }}
    if (lane == 0) rc[0] = ({word})c[warp];
    asm volatile("{ptx} {{{d_list}}}, {{{a_list}}}, {{{b_list}}}, {{{c_list}}};"
                 : {outputs}
                 : {inputs});
    if (lane == 0) d[warp] = ({c_type})rd[0];
}}
"""


def source(shape: Shape) -> str:
    """Return the CUDA source of one shape; its kernel is `KERNEL`."""
    counts = (shape.c_registers, shape.a_registers, shape.b_registers, shape.c_registers)
    names = ("rd", "ra", "rb", "rc")
    lists, start = [], 0
    for count in counts:
        lists.append(", ".join(f"%{start + n}" for n in range(count)))
        start += count
    operands = [
        ", ".join(
            f'"{mark}{_constraint(shape, name)}"({_access(shape, name, n)})' for n in range(count)
        )
        for name, count, mark in zip(names, counts, ("=", "", "", ""), strict=True)
    ]
    lanes, row_words, loads = _loads(shape)
    return _TEMPLATE.format(
        ptx=shape.ptx,
        kernel=KERNEL,
        word="unsigned long long" if shape.layout == "double" else "unsigned",
        c_type=_C_TYPES[shape.instruction.accumulator],
        a_count=shape.a_registers,
        b_count=shape.b_registers,
        c_count=shape.c_registers,
        row_words=row_words,
        lanes=lanes,
        loads="\n".join(f"        {line}" for line in loads),
        d_list=lists[0],
        a_list=lists[1],
        b_list=lists[2],
        c_list=lists[3],
        outputs=operands[0],
        inputs=", ".join(operands[1:]),
    )


_C_TYPES: Final = {
    "f32": "unsigned",
    "s32": "unsigned",
    "f16": "unsigned short",
    "f64": "unsigned long long",
}


def _constraint(shape: Shape, name: str) -> str:
    """Register class of an operand; bits travel in integer registers wherever PTX allows it."""
    if shape.layout == "double":
        return "d"
    if name in ("rc", "rd") and shape.instruction.accumulator == "f32":
        return "f"
    return "r"


def _access(shape: Shape, name: str, index: int) -> str:
    kind = {"d": "double", "f": "float"}.get(_constraint(shape, name))
    element = f"{name}[{index}]"
    return element if kind is None else f"*reinterpret_cast<{kind}*>(&{element})"


def _loads(shape: Shape) -> tuple[int, int, list[str]]:
    """Lanes that load, words of a row, and the loading statements."""
    if shape.layout == "volta":
        # Lane 0 holds all of row 0 of A and of column 0 of B.
        return 1, 2, ["ra[0] = row_a[0]; ra[1] = row_a[1];", "rb[0] = row_b[0]; rb[1] = row_b[1];"]
    if shape.layout == "double":
        return 4, 4, ["ra[0] = row_a[lane];", "rb[0] = row_b[lane];"]
    stride = shape.a_registers // shape.b_registers  # A's registers alternate rows g and g + 8
    loads = [f"ra[{stride * n}] = row_a[lane + {4 * n}];" for n in range(shape.b_registers)]
    loads += [f"rb[{n}] = row_b[lane + {4 * n}];" for n in range(shape.b_registers)]
    return 4, 4 * shape.b_registers, loads
