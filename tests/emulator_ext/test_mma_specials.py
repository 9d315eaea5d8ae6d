"""NaN, infinity, overflow, zeros and the exponent floor: NUMERICS 1.2 as a table."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import emulator_ext
from emulator_ext import UnsupportedError, isa
from tests.emulator_ext.mma_model import bits_of

INF, NAN = np.inf, np.nan
CANONICAL = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
INFINITY = {"f32": 0x7F800000, "f16": 0x7C00}
SIGN = {"f32": 0x80000000, "f16": 0x8000}
# a, b (two products), c, result: "nan", "+", "-"
TABLE = [
    ((NAN, 1), (1, 1), 0, "nan"),
    ((1, 1), (1, NAN), 0, "nan"),
    ((NAN, 0), (0, 1), 0, "nan"),
    ((1, 1), (1, 1), NAN, "nan"),
    ((INF, 1), (0, 1), 0, "nan"),
    ((0, 1), (-INF, 1), 0, "nan"),
    ((INF, 1), (-0.0, 1), 1, "nan"),
    ((INF, INF), (1, -1), 0, "nan"),
    ((INF, 1), (1, 1), -INF, "nan"),
    ((INF, 1), (2, 1), 0, "+"),
    ((INF, 1), (-2, 1), 5, "-"),
    ((INF, -INF), (INF, -INF), INF, "+"),
    ((1, 1), (1, 1), INF, "+"),
    ((1, 1), (1, 1), -INF, "-"),
    ((0, 0), (0, 0), -INF, "-"),
]


@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("arch", ["volta", "ampere", "hopper"])
def test_special_operands_follow_the_table(arch, acc):
    """Each line of the table gives the canonical NaN or the signed infinity, on every path."""
    for a, b, c, result in TABLE:
        expected = CANONICAL[acc] if result == "nan" else INFINITY[acc]
        expected |= SIGN[acc] if result == "-" else 0
        x, y = np.array([a], np.float16), np.array([b], np.float16)
        z = np.array([c], np.float16 if acc == "f16" else np.float32)
        outs = [emulator_ext.dot(x, y, z, arch=arch, acc=acc)]
        outs += [
            emulator_ext.matmul(x, y.T, z[None], arch=arch, acc=acc, path=path)[0]
            for path in emulator_ext.paths()
        ]
        for out in outs:
            assert int(bits_of(out)[0]) == expected, (a, b, c)


def test_e4m3_has_two_nans_and_no_infinity():
    """0x7f and 0xff are NaN; 0x7e is the largest number, 448."""
    bits = np.array([[0x7F], [0xFF], [0x7E], [0xFE]], np.uint8).view(ml_dtypes.float8_e4m3fn)
    one = np.ones((4, 1), ml_dtypes.float8_e4m3fn)
    out = emulator_ext.dot(bits, one, arch="ada")
    assert bits_of(out).tolist()[:2] == [0x7FFFFFFF, 0x7FFFFFFF]
    assert out[2:].tolist() == [448.0, -448.0]


@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_infinite_although_rounding_is_toward_zero(sign):
    """A bf16 chain that reaches 2^128 gives infinity; just below it the largest f32."""
    top = np.array([[2.0**127] * 2], np.float32).astype(ml_dtypes.bfloat16)
    one = np.array([[sign, sign]], np.float32).astype(ml_dtypes.bfloat16)
    out = emulator_ext.dot(top, one, arch="hopper")
    assert out[0] == sign * INF
    # 2^127 + (2^127 - 2^103) = 2^128 - 2^103, whose 24 leading bits are the largest f32.
    c = np.array([sign * (2.0**127 - 2.0**103)], np.float32)
    below = emulator_ext.dot(top[:, :1], one[:, :1], c, arch="hopper")
    assert below[0] == sign * np.finfo(np.float32).max


def test_f16_accumulator_overflows_at_65520():
    """65519 rounds to 65504 and 65520 to infinity, once and not by way of another format."""
    ones = np.ones((2, 2), np.float16)
    b = np.array([[65504, 15], [65504, 16]], np.float16)
    out = emulator_ext.dot(ones, b, arch="hopper", acc="f16")
    assert out.tolist() == [65504.0, INF]
    for path in emulator_ext.paths():
        product = emulator_ext.matmul(ones, b.T, arch="hopper", acc="f16", path=path)
        assert product[0].tolist() == [65504.0, INF]


def test_a_zero_result_is_positive():
    """Cancellation, zero products and a -0 accumulator all give +0."""
    a = np.array([[1, -1], [0, -0.0], [-0.0, 0]], np.float16)
    b = np.array([[1, 1], [1, 1], [2, 2]], np.float16)
    c = np.array([0.0, -0.0, -0.0], np.float32)
    for path in (None, "scalar"):
        out = emulator_ext.matmul(a, b.T, np.tile(c[:, None], 3), arch="ampere", path=path)
        assert bits_of(np.diagonal(out)).tolist() == [0, 0, 0]
    assert bits_of(emulator_ext.dot(a, b, c, arch="ampere")).tolist() == [0, 0, 0]


def test_subnormals_are_used_and_produced():
    """Nothing is flushed: bf16 subnormal operands and an f32 subnormal result survive."""
    tiny = np.array([[1]], np.uint16).view(ml_dtypes.bfloat16)  # 2^-133
    out = emulator_ext.dot(tiny, np.ones((1, 1), ml_dtypes.bfloat16), arch="hopper")
    assert float(out[0]) == 2.0**-133


def test_regions_are_counted():
    """report=True counts the outputs that met a special value or the exponent floor, once each."""
    a = np.ones((3, 8), ml_dtypes.bfloat16)
    b = np.ones((8, 4), ml_dtypes.bfloat16)
    _, regions = emulator_ext.matmul(a, b, arch="hopper", report=True)
    assert (regions.outputs, regions.special, regions.at_zero_floor) == (12, 0, 0)
    a[1, 2] = INF
    b[:, 3] = 2.0**-130
    a[2] = 2.0**-10
    for path in emulator_ext.paths():
        _, regions = emulator_ext.matmul(a, b, arch="hopper", report=True, path=path)
        assert (regions.special, regions.at_zero_floor) == (4, 1)


def test_a_half_accumulator_s_floor_is_counted():
    """With an f16 accumulator tiny products align at e_zero, which the report says."""
    a = np.full((1, 4), 2.0**-14, np.float16)
    for path in emulator_ext.paths():
        _, regions = emulator_ext.matmul(a, a.T, arch="hopper", acc="f16", report=True, path=path)
        assert regions.at_zero_floor == 1


@pytest.mark.parametrize(
    ("arch", "dtype", "acc", "instruction"),
    [
        ("volta", ml_dtypes.bfloat16, "f32", "mma"),
        ("ampere", ml_dtypes.float8_e4m3fn, "f32", "mma"),
        ("ampere", np.float16, "f32", "wgmma"),
        ("hopper", np.float16, "f32", "tcgen05"),
        ("hopper", ml_dtypes.bfloat16, "f16", "mma"),
        ("turing", np.float64, None, "mma"),
        ("volta", np.int8, None, "mma"),
        ("pascal", np.float16, "f32", "mma"),
        ("hopper", np.float64, "f32", "mma"),
    ],
)
def test_missing_instructions_are_refused_by_name(arch, dtype, acc, instruction):
    """What an architecture lacks is an error that names what it has (or the architectures)."""
    x = np.ones((1, 1), dtype)
    named = "ampere" if arch == "pascal" else "mma f16 f32"
    for call in (emulator_ext.dot, emulator_ext.matmul):
        with pytest.raises(UnsupportedError, match=named) as error:
            call(x, x, arch=arch, acc=acc, instruction=instruction)
        assert error.value.code == "E_UNSUPPORTED"
    with pytest.raises(UnsupportedError, match=named):
        emulator_ext.numerics(arch, dtype, acc, instruction)


def test_mixed_operands_only_where_the_instruction_mixes():
    """e4m3 x e5m2 exists, f16 x bf16 does not."""
    one = np.ones((1, 1))
    e4m3, e5m2 = one.astype(ml_dtypes.float8_e4m3fn), one.astype(ml_dtypes.float8_e5m2)
    assert emulator_ext.matmul(e4m3, e5m2, arch="ada")[0, 0] == 1
    with pytest.raises(UnsupportedError, match="f16 x bf16"):
        emulator_ext.matmul(one.astype(np.float16), one.astype(ml_dtypes.bfloat16), arch="ada")
    with pytest.raises(UnsupportedError, match="complex64"):
        emulator_ext.dot(one.astype(np.complex64), one.astype(np.complex64), arch="ada")


def test_operands_that_do_not_fit_are_refused():
    """Wrong ranks, depths and accumulators raise OperandError with the shapes in it."""
    x = np.ones((2, 3), np.float16)
    for bad in (
        lambda: emulator_ext.matmul(x, x, arch="ampere"),
        lambda: emulator_ext.dot(x, x.T, arch="ampere"),
        lambda: emulator_ext.matmul(x, x.T, np.zeros((2, 2), np.float16), arch="ampere"),
        lambda: emulator_ext.matmul(x, x.T, np.zeros(2, np.float32), arch="ampere"),
        lambda: emulator_ext.matmul(x, x.T, arch="ampere", threads=0),
    ):
        with pytest.raises(emulator_ext.OperandError) as error:
            bad()
        assert error.value.code == "E_OPERAND"


def test_the_table_carries_its_evidence():
    """Rows that no GPU was recorded for are called modelled, recorded ones recorded."""
    hopper = emulator_ext.numerics("hopper", np.float16)
    assert (hopper.F, hopper.L, hopper.e_zero, hopper.rounding) == (25, 16, -133, "rz_f32")
    assert hopper.evidence == "recorded"
    for row in (("turing", "f16"), ("hopper", "f64"), ("ampere", "s8"), ("rtx_blackwell", "bf16")):
        assert emulator_ext.numerics(*row).evidence == "modelled"
    assert emulator_ext.numerics("blackwell", "f16", "f32", "tcgen05").evidence == "modelled"
    assert emulator_ext.numerics("hopper", "e4m3").engine == "fp8_through_f16"


def test_the_documented_table_is_the_code_s():
    """Every row of docs/formats/numerics-table.md is what numerics() answers, and none lacks."""
    lines = (Path(__file__).parents[2] / "docs/formats/numerics-table.md").read_text().splitlines()
    first = lines.index(next(line for line in lines if line.startswith("| volta")))
    documented = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        documented.append(line.strip("| ").split(" | "))
    expected = []
    for arch in isa.ARCHITECTURES:
        for entry in isa.existing(arch):
            instruction, dtype, acc = entry.split()
            row = emulator_ext.numerics(arch, dtype, acc, instruction)
            numbers = ("-" if x is None else str(x) for x in (row.F, row.L, row.e_zero))
            columns = (row.engine, *numbers, row.rounding, row.evidence)
            expected.append([arch, instruction, dtype, acc, *columns])
    assert documented == expected
