"""Which step lies in which slot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transcript.errors import ContractError, LimitError, MalformedError, MissingError
from transcript.slots import Slots

steps = st.sets(st.integers(0, 300), max_size=40).map(sorted)


@settings(deadline=None, max_examples=200)
@given(steps)
def test_slots_number_the_steps(chosen):
    """Slot i holds the i-th step; any other step is missing; the document round-trips."""
    slots = Slots.of(chosen)
    assert list(slots) == chosen
    assert len(slots) == len(chosen)
    assert [slots.slot(step) for step in chosen] == list(range(len(chosen)))
    assert Slots.from_document(slots.document()) == slots
    for step in set(range(302)) - set(chosen):
        assert step not in slots
        with pytest.raises(MissingError, match=f"step {step} "):
            slots.slot(step)


def test_a_regular_plan_is_short():
    """Every tenth step of a million and the last one is two runs."""
    slots = Slots.of([*range(0, 1_000_000, 10), 999_999])
    assert slots.document() == [[0, 100_000, 10], [999_999, 1, 1]]


@pytest.mark.parametrize("bad", [[-1], [1, 1], [2, 1]])
def test_steps_ascend(bad):
    """Negative, repeated and descending steps are refused."""
    with pytest.raises(ContractError):
        Slots.of(bad)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({}, MalformedError),
        ([1], MalformedError),
        ([[0, 1]], MalformedError),
        ([[0, 1, True]], MalformedError),
        ([[0, "1", 1]], MalformedError),
        ([[-1, 1, 1]], MalformedError),
        ([[0, 0, 1]], MalformedError),
        ([[0, 1, 0]], MalformedError),
        ([[0, 2**60, 1]], MalformedError),
        ([[0, 5, 1], [4, 1, 1]], MalformedError),
        ([[i, 1, 1] for i in range(10_001)], LimitError),
        ([[0, 9_000_000, 1], [9_000_000, 9_000_000, 1]], LimitError),
    ],
)
def test_hostile_indexes_are_refused(document, error):
    """Overlapping, empty, endless or mistyped runs are refused."""
    with pytest.raises(error, match=r"zarr\.json"):
        Slots.from_document(document, file="zarr.json")
