"""One experiment: inputs, what each hypothesis predicts, what came back, what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from emulator_ext.probe.cases import Case, Maker, bits_text, stack
from emulator_ext.probe.device import Device, Instruction, ask
from emulator_ext.probe.formats import Bits
from emulator_ext.probe.model import AnyModel
from emulator_ext.probe.predict import predict

MAX_ROWS: Final = 8  # rows of an experiment that a report shows
MAX_PLAIN_ROWS: Final = 4  # rows where no input refutes anything
MAX_RIVALS: Final = 3  # hypotheses whose predictions a row lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One input with the predictions and the answer, as words."""

    fed: str
    predictions: tuple[tuple[str, str], ...]
    observed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A finished experiment.

    Attributes:
        name: dotted, for example `alignment.width`.
        question: what it asks.
        method: what is fed and why it answers the question.
        inputs: how many inputs were fed.
        rows: the inputs that tell the hypotheses apart, at most `MAX_ROWS`.
        hypotheses: each hypothesis and the number of inputs that refute it.
        conclusion: what follows.
        contradicts: the answer is none that NUMERICS allows.

    """

    name: str
    question: str
    method: str
    inputs: int
    rows: tuple[Row, ...]
    hypotheses: tuple[tuple[str, int], ...]
    conclusion: str
    contradicts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A property of the device and what decided it.

    Attributes:
        status: `decided`; `inert`: no input of these formats can show it; `refuted`: no
            hypothesis fits, the value is the one with the fewest contradictions.
        experiment: the experiment's name.

    """

    name: str
    value: str
    status: str
    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Labels of the hypotheses that no input refutes; empty when all are refuted."""

    survivors: tuple[str, ...]
    best: str
    inert: bool


@dataclass(slots=True)
class Lab:
    """A device, its experiments so far and the findings drawn from them."""

    device: Device
    experiments: list[Experiment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def instruction(self) -> Instruction:
        """Formats and K of the device."""
        return self.device.instruction

    @property
    def make(self) -> Maker:
        """Builder of its inputs."""
        return Maker(instruction=self.device.instruction)

    def answers(self, cases: Sequence[Case]) -> Bits:
        """Feed the cases to the device and return its bits [n]."""
        return ask(self.device, *stack(self.instruction, cases))

    def text(self, bits: int) -> str:
        """Explain result bits."""
        return bits_text(self.instruction.accumulator, bits)

    def record(self, experiment: Experiment, *findings: Finding) -> None:
        """Keep an experiment and what it established."""
        self.experiments.append(experiment)
        self.findings.extend(findings)

    def decide(
        self,
        name: str,
        question: str,
        method: str,
        cases: Sequence[Case],
        hypotheses: Mapping[str, AnyModel],
        *,
        allowed: Sequence[str],
        finding: str,
    ) -> Decision:
        """Feed the cases, keep the hypotheses that predict every answer, and record it.

        Args:
            name: of the experiment.
            question: in words.
            method: in words: what is fed and why.
            cases: the inputs.
            hypotheses: models by label.
            allowed: labels that NUMERICS allows; any other outcome contradicts it.
            finding: the name of the property that is decided.

        """
        observed = self.answers(cases)
        inputs = stack(self.instruction, cases)
        predicted = {
            label: predict(model, self.instruction, *inputs) for label, model in hypotheses.items()
        }
        wrong = {label: int((bits != observed).sum()) for label, bits in predicted.items()}
        decision = _decision(wrong, predicted)
        conclusion, status = _conclusion(finding, decision, wrong, len(cases))
        value = decision.best if status != "inert" else "not observable"
        contradicts = not set(decision.survivors) & set(allowed)
        self.record(
            Experiment(
                name=name,
                question=question,
                method=method,
                inputs=len(cases),
                rows=_rows(self.text, cases, predicted, observed),
                hypotheses=tuple(wrong.items()),
                conclusion=conclusion,
                contradicts=contradicts,
            ),
            Finding(name=finding, value=value, status=status, experiment=name),
        )
        return decision

    def rows(
        self, cases: Sequence[Case], hypotheses: Mapping[str, AnyModel], observed: Bits
    ) -> tuple[Row, ...]:
        """Return the rows of a report for hypotheses that were weighed elsewhere."""
        inputs = stack(self.instruction, cases)
        predicted = {
            label: predict(model, self.instruction, *inputs) for label, model in hypotheses.items()
        }
        return _rows(self.text, cases, predicted, observed)


def _rows(
    text: Callable[[int], str],
    cases: Sequence[Case],
    predicted: Mapping[str, Bits],
    observed: Bits,
) -> tuple[Row, ...]:
    """Return the most telling inputs: those that refute the closest rivals."""
    wrong = {label: int((bits != observed).sum()) for label, bits in predicted.items()}
    labels = sorted(wrong, key=lambda label: wrong[label])[:MAX_RIVALS]
    table = np.stack([predicted[label] != observed for label in labels])
    telling = table.sum(axis=0)
    order = np.argsort(-telling, kind="stable")
    # Inputs that refute nothing are shown only where none does.
    order = order[telling[order] > 0][:MAX_ROWS] if telling.any() else order[:MAX_PLAIN_ROWS]
    return tuple(
        Row(
            fed=cases[i].text,
            predictions=tuple((label, text(int(predicted[label][i]))) for label in labels),
            observed=text(int(observed[i])),
        )
        for i in sorted(order.tolist())
    )


def _decision(wrong: Mapping[str, int], predicted: Mapping[str, Bits]) -> Decision:
    survivors = tuple(label for label, count in wrong.items() if count == 0)
    best = min(wrong, key=lambda label: wrong[label])
    first, *others = predicted.values()
    inert = bool(others) and all(np.array_equal(first, bits) for bits in others)
    return Decision(survivors=survivors, best=best, inert=inert and bool(survivors))


def _conclusion(
    finding: str, decision: Decision, wrong: Mapping[str, int], cases: int
) -> tuple[str, str]:
    if cases == 0:
        return f"{finding}: these formats cannot express an input that asks this", "inert"
    if not decision.survivors:
        count = wrong[decision.best]
        fault = (
            f"no hypothesis about {finding} fits; the closest, {decision.best}, is refuted by "
            f"{count} of {cases} inputs"
        )
        return fault, "refuted"
    if decision.inert:
        return f"{finding}: all hypotheses predict the same; it is not observable here", "inert"
    if len(wrong) == 1:
        return f"{finding}: {decision.best}; all {cases} inputs agree", "decided"
    if len(decision.survivors) == 1:
        return f"{finding}: {decision.best}; every other hypothesis is refuted", "decided"
    return f"{finding}: {' or '.join(decision.survivors)} (no input tells them apart)", "decided"
