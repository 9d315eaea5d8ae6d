"""What k clean random steps say about the steps that were not looked at.

If a share f of the steps were bad, k uniform draws would all miss them with probability at
most (1 - f)^k. So after k clean draws, f is below

    f_max = 1 - delta^(1/k)

at confidence 1 - delta. k counts the random draws alone: the first and the last step are
looked at always, so a cheat would avoid them and they prove nothing about the others. The
draws are stratified and without replacement, which only lowers the probability of a miss
(verifier/sampling.py has the argument).
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

_PRECISION = Context(prec=40)
_QUANTUM = Decimal("0.000001")


def f_max(draws: int, delta: Decimal, *, population: int) -> Decimal:
    """Return the bound on the share of bad steps, rounded up to six places.

    Args:
        draws: clean random draws, k.
        delta: 1 - confidence, in (0, 1).
        population: steps that were not fixed in advance; all drawn means nothing is left.

    """
    if draws >= population:
        return Decimal(0).quantize(_QUANTUM)
    if draws == 0:
        return Decimal(1).quantize(_QUANTUM)
    root = _PRECISION.power(delta, _PRECISION.divide(Decimal(1), Decimal(draws)))
    return (1 - root).quantize(_QUANTUM, rounding=ROUND_CEILING)


def draws_needed(share: Decimal, delta: Decimal) -> int:
    """Return the least k whose bound is at most `share`, a fraction in (0, 1)."""
    exact = _PRECISION.divide(_PRECISION.ln(delta), _PRECISION.ln(1 - share))
    return int(exact.to_integral_value(rounding=ROUND_CEILING))


def percent(share: Decimal) -> str:
    """Return a share as a percentage that a reader can take in, rounded up: `12 %`, `0.4 %`."""
    value = share * 100
    quantum = Decimal(1) if value >= 10 else Decimal("0.1") if value >= 1 else Decimal("0.01")
    shown = value.quantize(quantum, rounding=ROUND_CEILING)
    return f"{shown.normalize():f} %"


def confidence(delta: Decimal) -> str:
    """Return 1 - delta as a percentage, without rounding."""
    return f"{((1 - delta) * 100).normalize():f} %"


def sentence(bound: Decimal, delta: Decimal) -> str:
    """Say in plain words what the bound means."""
    if bound == 0:
        return "Every recorded step was computed again, so no falsified one could have escaped."
    if bound == 1:
        return (
            "Only the first and the last step were computed again, so this audit says nothing "
            "about how many of the others may be falsified."
        )
    return (
        f"If more than {percent(bound)} of the recorded steps had been falsified, this audit "
        f"would have caught it with at least {confidence(delta)} confidence."
    )
