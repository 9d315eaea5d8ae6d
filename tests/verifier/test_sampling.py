"""Laws of the draw: what it takes, that it repeats, and that no step is favoured."""

from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier import bounds, sampling
from verifier.errors import OptionError

seeds = st.binary(min_size=32, max_size=32)
populations = st.lists(st.integers(0, 5000), min_size=1, max_size=300, unique=True).map(sorted)


@given(seed=seeds, recorded=populations, count=st.integers(1, 320))
@settings(deadline=None, max_examples=150)
def test_takes_the_right_steps(seed, recorded, count):
    """No step twice, only recorded ones, first and last always, and as many as asked for."""
    steps = sampling.sample_steps(seed, recorded, count)
    assert steps == sorted(set(steps))
    assert set(steps) <= set(recorded)
    assert {recorded[0], recorded[-1]} <= set(steps)
    assert len(steps) == min(len(recorded), max(count, 2))


@given(seed=seeds, recorded=populations, count=st.integers(1, 320))
@settings(deadline=None, max_examples=50)
def test_same_seed_same_steps(seed, recorded, count):
    """A draw can be repeated by anyone who has the seed."""
    first = sampling.sample_steps(seed, recorded, count)
    assert first == sampling.sample_steps(seed, tuple(recorded), count)


@given(seed=seeds, length=st.integers(5, 400), count=st.integers(5, 60))
@settings(deadline=None, max_examples=100)
def test_every_phase_is_hit(seed, length, count):
    """With three draws or more, early, middle and late training each get one."""
    steps = sampling.sample_steps(seed, range(length), count)
    for phase in sampling.phases(range(1, length - 1), sampling.PHASES):
        assert set(phase) & set(steps)


@given(seed=seeds, recorded=populations, count=st.integers(1, 320), border=st.integers(0, 5000))
@settings(deadline=None, max_examples=100)
def test_both_parts_are_hit(seed, recorded, count, border):
    """With a draw for each part that has steps between first and last, each part gets one."""
    steps = sampling.sample_steps(seed, recorded, count, border=border)
    assert len(steps) == len(set(steps)) == min(len(recorded), max(count, 2))
    assert {recorded[0], recorded[-1]} <= set(steps) <= set(recorded)
    between = recorded[1:-1]
    parts = [{s for s in between if s < border}, {s for s in between if s >= border}]
    filled = [part for part in parts if part]
    if sampling.random_draws(len(recorded), count) >= len(filled):
        assert all(part & set(steps) for part in filled)


@given(steps=st.lists(st.integers(), max_size=50), number=st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_phases_partition(steps, number):
    """Phases are consecutive, cover everything and differ in size by at most one."""
    parts = sampling.phases(steps, number)
    assert [step for part in parts for step in part] == steps
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 255, 256, 257, 1000])
def test_below_is_in_range_and_uniform(bound):
    """Rejection favours nobody: chi-squared stays within six standard deviations."""
    stream = sampling.Stream(bytes(32))
    draws = 40 * bound
    counts = Counter(stream.below(bound) for _ in range(draws))
    assert set(counts) <= set(range(bound))
    chi = sum((counts[i] - 40) ** 2 / 40 for i in range(bound))
    assert abs(chi - (bound - 1)) <= 6 * (2 * bound) ** 0.5


def test_modulo_would_be_caught():
    """The uniformity test is sharp: taking a byte modulo 200 fails it."""
    stream = sampling.Stream(bytes(32))
    counts = Counter(stream.below(256) % 200 for _ in range(8000))
    chi = sum((counts[i] - 40) ** 2 / 40 for i in range(200))
    assert abs(chi - 199) > 6 * 400**0.5


def test_stream_is_shake256():
    """The stream is SHAKE-256 of the seed, read from its start however it is asked for."""
    import hashlib

    stream = sampling.Stream(b"seed")
    read = bytes(stream.below(256) for _ in range(5000))
    assert read == hashlib.shake_256(b"seed").digest(5000)


def test_every_step_is_about_equally_likely():
    """Over many seeds each step between first and last is drawn about as often as the others."""
    length, count, seeds_tried = 23, 8, 3000
    hits = Counter(
        step
        for i in range(seeds_tried)
        for step in sampling.sample_steps(i.to_bytes(32, "big"), range(length), count)
    )
    expected = seeds_tried * (count - 2) / (length - 2)
    for step in range(1, length - 1):
        assert abs(hits[step] - expected) < 6 * expected**0.5


@pytest.mark.parametrize(("length", "count"), [(7, 4), (8, 5), (9, 6), (10, 7), (9, 3)])
def test_bound_holds_exactly(length, count):
    """Worst case by enumeration: no placement of bad steps escapes more often than claimed."""
    draws = sampling.random_draws(length, count)
    between = range(1, length - 1)
    for bad in range(1, length - 1):
        worst = max(
            _miss_probability(set(chosen), between, draws) for chosen in combinations(between, bad)
        )
        assert worst <= (1 - Fraction(bad, length)) ** draws


@pytest.mark.parametrize(("length", "count"), [(9, 3), (9, 4), (9, 6), (10, 7)])
@pytest.mark.parametrize("border", [1, 2, 3, 6, 8, 20])
def test_bound_of_two_parts_holds_exactly(length, count, border):
    """Worst case again, for a text whose prompt is short, long, or all of it: fewer draws count."""
    draws, between = sampling.random_draws(length, count), range(1, length - 1)
    worth = sampling.worth(range(length), count, border=border)
    assert worth == draws - (draws >= 2 and 1 < border < length - 1)
    for bad in range(1, length - 1):
        worst = max(
            _miss_probability(set(chosen), between, draws, border)
            for chosen in combinations(between, bad)
        )
        assert worst <= (1 - Fraction(bad, length)) ** worth


def test_two_parts_are_not_worth_two_draws():
    """Counting every draw would claim too much: all bad steps may lie in the larger part."""
    bad, between = {7, 8}, range(1, 9)
    assert _miss_probability(bad, between, 2, border=2) > (1 - Fraction(2, 10)) ** 2


def _miss_probability(
    bad: set[int], between: range, draws: int, border: int | None = None
) -> Fraction:
    parts = sampling.strata(between, draws, border)
    miss = Fraction(1)
    for part in parts:
        miss *= Fraction(len(set(part) - bad), len(part))
    left = len(between) - len(parts)
    for i in range(draws - len(parts)):
        miss *= Fraction(max(left - i - len(bad), 0), left - i)
    return miss


def test_nothing_to_sample_is_refused():
    """No steps asked for, or none recorded, is a usage error."""
    with pytest.raises(OptionError):
        sampling.sample_steps(bytes(32), [], 3)
    with pytest.raises(OptionError):
        sampling.sample_steps(bytes(32), [1, 2], 0)


@given(draws=st.integers(1, 5000), delta=st.sampled_from(["0.1", "0.05", "0.01", "0.000001"]))
@settings(deadline=None, max_examples=60)
def test_f_max_is_the_formula_rounded_up(draws, delta):
    """The bound is 1 - delta^(1/k): never below it, and above by less than the last place."""
    bound = bounds.f_max(draws, Decimal(delta), population=10**6)
    miss = (1 - bound) ** draws
    assert miss <= Decimal(delta)
    assert (1 - (bound - Decimal("0.000001"))) ** draws > Decimal(delta)


def test_f_max_at_its_ends():
    """No draws bound nothing; all drawn leaves nothing; an example by hand."""
    assert bounds.f_max(0, Decimal("0.01"), population=10) == 1
    assert bounds.f_max(10, Decimal("0.01"), population=10) == 0
    assert str(bounds.f_max(2, Decimal("0.01"), population=10)) == "0.900000"


def test_draws_needed_inverts_f_max():
    """The number of draws for a share is the least whose bound reaches it."""
    for share in ("0.5", "0.1", "0.01"):
        needed = bounds.draws_needed(Decimal(share), Decimal("0.01"))
        assert bounds.f_max(needed, Decimal("0.01"), population=10**9) <= Decimal(share)
        assert bounds.f_max(needed - 1, Decimal("0.01"), population=10**9) > Decimal(share)


@pytest.mark.parametrize(
    ("share", "shown"),
    [("0.119", "12 %"), ("0.9", "90 %"), ("0.0451", "4.6 %"), ("0.00301", "0.31 %")],
)
def test_percent_rounds_up(share, shown):
    """Percentages in sentences never claim more than was shown."""
    assert bounds.percent(Decimal(share)) == shown


def test_sentences():
    """The plain sentence says what the number means, at both ends too."""
    text = bounds.sentence(Decimal("0.119"), Decimal("0.01"))
    assert "more than 12 %" in text
    assert "99 % confidence" in text
    assert "Every recorded step" in bounds.sentence(Decimal(0), Decimal("0.01"))
    assert "says nothing" in bounds.sentence(Decimal(1), Decimal("0.01"))
