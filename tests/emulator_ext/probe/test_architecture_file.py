"""Architecture files: written by the probe, loaded by the emulator, hostile ones refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import emulator_ext
from emulator_ext.architecture_file import (
    MAX_FILE_BYTES,
    ArchitectureFileError,
    ProbedArchitecture,
    ProbedInstruction,
    read_architecture,
    write_architecture,
)
from emulator_ext.loaded import loaded_architecture
from emulator_ext.probe import EmulatedDevice, Instruction, ProbeError, run, save
from tests.emulator_ext.probe.devices import FmaDevice, IntegerDevice, Knobs, StepDevice

DATE = dt.date(2026, 1, 2)
ROW = ProbedInstruction(
    instruction="mma",
    operands="bf16",
    accumulator="f32",
    k=16,
    engine="chain",
    F=22,
    L=4,
    e_zero=-140,
    rounding="rz_f32",
    checks=700,
    seed=1,
)
PLAIN = ProbedArchitecture(name="plain", device="a device", date="2026-01-02", instructions=(ROW,))


def _hostile() -> dict[str, Any]:
    return {
        "format": "bitwitness/architecture/v1",
        "name": "plain",
        "device": "a device",
        "date": "2026-01-02",
        "instructions": [
            {name: getattr(ROW, name) for name in ProbedInstruction.__dataclass_fields__}
        ],
    }


def test_files_round_trip(tmp_path: Path) -> None:
    """What is written is what is read, and an existing file is never replaced."""
    path = tmp_path / "plain.yaml"
    write_architecture(path, PLAIN)
    assert read_architecture(path) == PLAIN
    with pytest.raises(ArchitectureFileError, match="cannot write"):
        write_architecture(path, replace(PLAIN, device="another"))
    assert read_architecture(path) == PLAIN


def test_a_probed_device_runs_in_the_emulator(tmp_path: Path) -> None:
    """An unknown machine, probed, saved and loaded, gives its own bits through dot and matmul."""
    instruction = Instruction(a="bf16", b="bf16", accumulator="f32", k=8)
    device = StepDevice(instruction, Knobs(F=24, L=4, e_zero=-141), "strange machine")
    found = run(device, checks=350)
    path = tmp_path / "strange.yaml"
    save(path, "strange", [found], date=DATE)
    assert emulator_ext.load_architecture(path) == "strange"
    assert emulator_ext.load_architecture(path) == "strange"
    row = emulator_ext.numerics("strange", "bf16")
    assert (row.F, row.L, row.e_zero, row.evidence) == (24, 4, -141, "probed")
    known = loaded_architecture("strange")
    assert known is not None
    assert (known.device, known.date) == ("strange machine", "2026-01-02")
    emulated = EmulatedDevice("strange", instruction)
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 1 << 16, (500, 8), dtype=np.uint16) for _ in range(2))
    c = rng.integers(0, 1 << 32, 500, dtype=np.uint32)
    np.testing.assert_array_equal(emulated.mma(a, b, c), device.mma(a, b, c))
    _same_in_matmul(device, rng)


def _same_in_matmul(device: StepDevice, rng: np.random.Generator) -> None:
    """Every element of a whole product is a chain of the device's instructions."""
    import ml_dtypes

    bf16 = np.dtype(ml_dtypes.bfloat16)
    a = rng.standard_normal((9, 32)).astype(bf16)
    b = rng.standard_normal((32, 11)).astype(bf16)
    product = emulator_ext.matmul(a, b, arch="strange").view(np.uint32)
    for i, j in ((0, 0), (8, 10), (4, 7)):
        c = np.zeros(1, np.uint32)
        for k in range(0, 32, 8):
            row = a[i : i + 1, k : k + 8].view(np.uint16)
            column = b[k : k + 8, j].reshape(1, 8).view(np.uint16)
            c = device.mma(row, column, c)
        assert product[i, j] == c[0]
    with pytest.raises(emulator_ext.UnsupportedError, match="strange has no mma of f16"):
        emulator_ext.numerics("strange", "f16")


def test_a_loaded_architecture_runs_the_heal_profile(tmp_path: Path) -> None:
    """A copy of Hopper's f16 row under another name gives Hopper's bits in `gemm`."""
    instruction = Instruction(a="f16", b="f16", accumulator="f32", k=16)
    found = run(EmulatedDevice("hopper", instruction), checks=70)
    path = tmp_path / "twin.yaml"
    save(path, "hopper_twin", [found], date=DATE)
    emulator_ext.load_architecture(path)
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((33, 33)).astype(np.float32) for _ in range(2))
    twin = emulator_ext.gemm(a, b, profile="heal", arch="hopper_twin")
    hopper = emulator_ext.gemm(a, b, profile="heal", arch="hopper")
    np.testing.assert_array_equal(twin.view(np.uint32), hopper.view(np.uint32))


def test_an_odd_width_gives_the_same_bits_on_every_path(tmp_path: Path) -> None:
    """F = 22 and L = 4, which no hardware has, agree between the chain and the fast product."""
    path = tmp_path / "odd.yaml"
    rows = (replace(ROW, operands="f16", e_zero=None), replace(ROW, e_zero=None))
    write_architecture(path, replace(PLAIN, name="odd_widths", instructions=rows))
    emulator_ext.load_architecture(path)
    rng = np.random.default_rng(7)
    a = (rng.standard_normal((16, 96)) * 2.0 ** rng.integers(-6, 6, (16, 96))).astype(np.float16)
    b = rng.standard_normal((96, 16)).astype(np.float16)
    for path in emulator_ext.paths():
        whole = emulator_ext.matmul(a, b, arch="odd_widths", path=path).view(np.uint32)
        _same_as_chains(whole, a, b)


def _same_as_chains(whole: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    flat_a, flat_b = np.repeat(a, 16, axis=0), np.tile(b.T, (16, 1))
    single = emulator_ext.dot(flat_a, flat_b, arch="odd_widths").view(np.uint32)
    np.testing.assert_array_equal(whole.ravel(), single)


def test_fp64_and_integers_are_saved_too(tmp_path: Path) -> None:
    """One file holds every kind of engine of one device."""
    fma, integer = FmaDevice(4), IntegerDevice("s8", "s8", 32)
    fma.name = integer.name = "one machine"
    found = [run(fma, checks=70), run(integer, checks=70)]
    saved = save(tmp_path / "both.yaml", "both_engines", found, date=DATE)
    assert [row.engine for row in saved.instructions] == ["fma", "integer"]
    assert emulator_ext.load_architecture(tmp_path / "both.yaml") == "both_engines"
    assert emulator_ext.numerics("both_engines", "s8").evidence == "probed"


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    """Mixed operands, devices of two names, and built-in names are refused by one line."""
    mixed = IntegerDevice("s8", "u8", 32)
    plain = IntegerDevice("u8", "u8", 32)
    with pytest.raises(ProbeError, match="mixed operands"):
        save(tmp_path / "x", "mixed", [run(mixed, checks=7)], date=DATE)
    found = run(plain, checks=7)
    with pytest.raises(ProbeError, match="one device, not 2"):
        save(tmp_path / "x", "two", [found, replace(found, device="other")], date=DATE)
    with pytest.raises(ProbeError, match="one device, not 0"):
        save(tmp_path / "x", "none", [], date=DATE)
    with pytest.raises(ProbeError, match="built-in"):
        save(tmp_path / "x", "hopper", [found], date=DATE)
    assert not (tmp_path / "x").exists()


def test_a_name_cannot_be_taken_twice(tmp_path: Path) -> None:
    """A file cannot pose as a built-in architecture or as another file's."""
    first, second, posing = (tmp_path / name for name in ("first", "second", "posing"))
    write_architecture(first, replace(PLAIN, name="taken"))
    write_architecture(second, replace(PLAIN, name="taken", device="other"))
    write_architecture(posing, replace(PLAIN, name="hopper"))
    emulator_ext.load_architecture(first)
    with pytest.raises(ArchitectureFileError, match="'taken' is loaded from another file"):
        emulator_ext.load_architecture(second)
    with pytest.raises(ArchitectureFileError, match="'hopper' is a built-in architecture"):
        emulator_ext.load_architecture(posing)


CHANGES: dict[str, tuple[list[object], object, str]] = {
    "version": (["format"], "bitwitness/architecture/v2", "format is not"),
    "name": (["name"], "../evil", "name must match"),
    "name not text": (["name"], 5, "name must match"),
    "device": (["device"], "x" * 129, "device must be"),
    "control characters": (["device"], "a\x1b[2Jb", "device must be"),
    "date": (["date"], "2026-13-40", "date must be"),
    "no rows": (["instructions"], [], "needs 1 to 64 instructions"),
    "rows no list": (["instructions"], "mma", "needs 1 to 64 instructions"),
    "instruction": (["instructions", 0, "instruction"], "hmma", "no such instruction"),
    "instruction list": (["instructions", 0, "instruction"], ["mma"], "no such instruction"),
    "operands": (["instructions", 0, "operands"], "f8", "no such operands"),
    "operands list": (["instructions", 0, "operands"], ["f16"], "no such operands"),
    "accumulator": (["instructions", 0, "accumulator"], "f16", "no such accumulator"),
    "engine": (["instructions", 0, "engine"], "magic", "no such engine"),
    "engine of f64": (["instructions", 0, "engine"], "fma", "no such rounding"),
    "rounding": (["instructions", 0, "rounding"], "rne_f32", "no such rounding"),
    "rounding of f16": (["instructions", 0, "rounding"], "rne_f16", "rounding and accumulator"),
    "F": (["instructions", 0, "F"], 26, "F must be an integer from 1 to 25"),
    "F true": (["instructions", 0, "F"], "true", "F must be an integer"),
    "F null": (["instructions", 0, "F"], None, "F and L do not fit"),
    "L": (["instructions", 0, "L"], 0, "L must be an integer from 4 to 32"),
    "L odd": (["instructions", 0, "L"], 12, "L must be one of 4, 8, 16, 32"),
    "L huge": (["instructions", 0, "L"], 1 << 40, "L must be an integer"),
    "K": (["instructions", 0, "k"], 65, "k must be an integer from 1 to 64"),
    "e_zero": (["instructions", 0, "e_zero"], 1000, "e_zero must be an integer"),
    "e_zero a float": (["instructions", 0, "e_zero"], 1.5, "e_zero must be an integer"),
    "checks": (["instructions", 0, "checks"], 0, "checks must be an integer"),
    "more keys": (["extra"], 1, "exactly the keys"),
    "more row keys": (["instructions", 0, "extra"], 1, "exactly the keys"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_broken_documents_are_refused(tmp_path: Path, change: str) -> None:
    """Each broken field is refused in one line that names the file and the fault."""
    where, value, fault = CHANGES[change]
    document: Any = _hostile()
    place = document
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ArchitectureFileError, match=fault) as caught:
        read_architecture(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


TEXTS = {
    "alias": ("a: &x [1]\nb: *x\n", "aliases are not allowed"),
    "python tag": ("!!python/object/apply:os.system ['true']\n", "tags are not allowed"),
    "plain tag": ("name: !!str x\n", "tags are not allowed"),
    "repeated key": ("name: x\nname: y\n", "'name' is repeated"),
    "key of another kind": ("? [1, 2]\n: x\n", "a key is not a string"),
    "two documents": ("a: 1\n---\nb: 2\n", "another document"),
    "no mapping": ("- 1\n", "exactly the keys"),
    "empty": ("", "exactly the keys"),
    "unclosed": ("[1, 2\n", ":2: "),
    "deep": ("[" * 20_000, "nested too deeply"),
    "long integer": ("format: " + "9" * 40 + "\n", "exactly the keys"),
    "too large": ("#" * (MAX_FILE_BYTES + 1), "larger than"),
    "not ASCII": ("name: \u00e9\n", "not ASCII"),
    "control": ("name: \x00\n", "special characters"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_texts_are_refused(tmp_path: Path, name: str) -> None:
    """Bombs, tags, aliases and broken YAML end in one line, whatever the reader meets first."""
    text, fault = TEXTS[name]
    path = tmp_path / "hostile.yaml"
    path.write_bytes(text.encode())
    with pytest.raises(ArchitectureFileError, match=fault) as caught:
        read_architecture(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """What is no readable file is refused by name."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ArchitectureFileError, match="cannot read"):
            emulator_ext.load_architecture(path)


def test_a_row_listed_twice_is_refused(tmp_path: Path) -> None:
    """Two rows of one instruction would make its arithmetic ambiguous."""
    with pytest.raises(ArchitectureFileError, match="listed twice"):
        write_architecture(tmp_path / "twice", replace(PLAIN, instructions=(ROW, ROW)))
    assert not (tmp_path / "twice").exists()
