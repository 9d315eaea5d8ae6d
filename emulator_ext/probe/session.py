"""The whole interrogation of one black box, in the order in which answers build on answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator_ext.probe import alignment, limits, result, scalar_units, specials
from emulator_ext.probe.check import Check, run_check
from emulator_ext.probe.device import Device, Instruction
from emulator_ext.probe.errors import ProbeError
from emulator_ext.probe.experiment import Experiment, Finding, Lab
from emulator_ext.probe.formats import FORMATS
from emulator_ext.probe.grouping import Grouping, find_grouping, regroup
from emulator_ext.probe.model import AnyModel, Model
from emulator_ext.probe.rounding import Rounding

DEFAULT_CHECKS: Final = 20_000
DEFAULT_SEED: Final = 1

_NARROW: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """What a black box is, as far as its answers tell.

    Attributes:
        model: the hypothesis that the experiments left; none if no order of addition fits.
        findings: each property, its value, and the experiment that decided it.
        check: the random comparison of `model` with the device; none without a model.

    """

    device: str
    instruction: Instruction
    model: AnyModel | None
    findings: tuple[Finding, ...]
    experiments: tuple[Experiment, ...]
    check: Check | None

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Names of the experiments whose answers NUMERICS does not allow."""
        names = [e.name for e in self.experiments if e.contradicts]
        if self.check is not None and self.check.mismatches:
            names.append("check")
        return tuple(names)

    @property
    def follows(self) -> bool:
        """Whether the device follows NUMERICS section 1 in everything that was asked."""
        return self.model is not None and not self.contradictions

    def finding(self, name: str) -> Finding:
        """Return the finding of that name.

        Raises:
            KeyError: this device was not asked.

        """
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)


def run(
    device: Device,
    *,
    checks: int = DEFAULT_CHECKS,
    seed: int = DEFAULT_SEED,
    progress: Callable[[str], None] | None = None,
) -> Characterisation:
    """Interrogate a black box.

    Args:
        device: see `Device`.
        checks: random inputs of the final comparison.
        seed: of these inputs.
        progress: called with the name of each stage as it begins.

    Raises:
        ProbeError: the device's answers break the protocol, or its formats cannot be probed.

    """
    say = progress or (lambda _stage: None)
    lab = Lab(device=device)
    model = _interrogate(lab, say)
    check = None
    if model is not None:
        say("random check")
        check = run_check(device, model, checks, seed)
    return Characterisation(
        device=device.name,
        instruction=device.instruction,
        model=model,
        findings=tuple(lab.findings),
        experiments=tuple(lab.experiments),
        check=check,
    )


def _interrogate(lab: Lab, say: Callable[[str], None]) -> AnyModel | None:
    instruction = lab.instruction
    operands = {instruction.a, instruction.b}
    if operands <= {"s8", "u8"} and instruction.accumulator == "s32":
        say("integer")
        return scalar_units.find_integer(lab)
    double = operands == {"f64"} and instruction.accumulator == "f64"
    if not double and not (operands <= {*_NARROW} and instruction.accumulator in {"f32", "f16"}):
        msg = f"no experiments for {instruction.label}"
        raise ProbeError(msg)
    say("grouping")
    grouping = find_grouping(lab)
    if not grouping.groups:
        return None
    if not double:
        return _aligned_sum(lab, grouping, say)
    if any(len(group) > 1 for group in grouping.groups) or grouping.c_joins == "end":
        return None
    say("fma")
    return scalar_units.find_fma(lab, tuple(group[0] for group in grouping.groups))


def _aligned_sum(lab: Lab, grouping: Grouping, say: Callable[[str], None]) -> Model:
    accumulator = FORMATS[lab.instruction.accumulator]
    half = accumulator.name == "f16"
    model = Model(
        groups=grouping.groups,
        c_joins="end" if grouping.c_joins == "end" else "first",
        significant_bits=accumulator.fraction_bits + 1,
        rounding=Rounding.NEAREST_EVEN if half else Rounding.TRUNCATE,
        nan_bits=accumulator.nan_bits,
    )
    say("alignment")
    model = specials.find_dropped_bits(lab, model)
    if alignment.observable(model):
        model = alignment.find_width(lab, model)
        model = alignment.find_rounding(lab, model)
        model = alignment.find_product_exponent(lab, model)
    if grouping.broken:
        model = regroup(lab, model)
    say("result")
    model = result.find_result(lab, model)
    if not alignment.observable(model):
        model = alignment.find_width_by_borrow(lab, model)
    model = result.find_end_rounding(lab, model)
    say("limits")
    model = limits.find_flushes(lab, model)
    if alignment.observable(model):
        model = alignment.find_operand_exponent(lab, model)
    model = result.find_carry(lab, model)
    model = limits.find_floor(lab, model)
    model = limits.find_c_exponent(lab, model)
    if alignment.observable(model):
        alignment.check_positions(lab, model)
    alignment.check_sum(lab, model)
    say("specials")
    model = specials.find_zero_sign(lab, model)
    model = specials.find_overflow(lab, model)
    model = specials.find_nan(lab, model)
    specials.check_infinities(lab, model)
    result.check_c_alone(lab, model)
    return model
