"""What has to be executed again is as little as the kept states allow."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.reveal import stretches


@given(
    every=st.integers(1, 9),
    length=st.integers(1, 60),
    chosen=st.sets(st.integers(0, 59), min_size=1),
)
@settings(deadline=None, max_examples=200)
def test_stretches(every, length, chosen):
    """Each begins at a kept state, each chosen step is in one, and none could be shorter."""
    steps = sorted(step for step in chosen if step < length) or [length - 1]
    kept = [*range(0, length, every), length]
    found = stretches(kept, steps)
    executed = [step for stretch in found for step in stretch]
    assert len({*executed}) == len(executed)
    for stretch in found:
        assert stretch.start in kept
        assert stretch[-1] in steps
        assert not {*range(stretch.start + 1, stretch[-1] + 1)} & {*kept}
    assert {*steps} <= {*executed}


def test_an_example():
    """Two steps behind one kept state share its stretch; a kept step costs itself alone."""
    assert stretches([0, 4, 8, 10], [1, 2, 4, 9]) == [range(3), range(4, 5), range(8, 10)]
