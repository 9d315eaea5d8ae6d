"""Which steps are challenged: drawn from a seed, without repeats, and from every phase.

The first and the last recorded step are always taken. Of the k steps drawn besides, one comes
from each phase (the early, middle and late third of the steps between; fewer phases if k is
smaller) and the rest from all that remain. Every rank of a challenged step is replayed, so
ranks need no strata of their own.

A generated text has two parts that are unlike: steps that feed the prompt, and steps that
generate. There the strata are these two, cut at a border: with two draws or more, one comes from
each part that has steps between the first and the last.

Why k such draws are worth k independent ones. Let b of N steps be bad, none of them the first
or last (those are looked at). The s phases have at most m = ceil((N-2)/s) steps each, so by
the inequality of the means all phase draws miss with probability at most (1 - b/(s m))^s, and
s m <= N - 2 + s - 1 <= N for s <= 3. The others are drawn from fewer than N steps that still
hold all b. So all miss with probability at most (1 - b/N)^k.

Two parts of unequal size are not covered by that: all bad steps may lie in the larger. But both
draws together miss with probability (1 - p)(1 - q), if p and q are the shares of bad steps in
the parts, which is at most 1 less their mean weighted by size. So the two are worth one draw.

An index below n is drawn by rejection: the least whole bytes of a SHAKE-256 stream over the
seed that can hold it, masked to its bit length, until the number is below n. It is uniform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from verifier.errors import OptionError

PHASES = 3
_BLOCK = 1024


class Stream:
    """Uniform integers from SHAKE-256(seed), FIPS 202."""

    def __init__(self, seed: bytes) -> None:
        self._shake = hashlib.shake_256(seed)
        self._bytes = b""
        self._used = 0

    def below(self, bound: int) -> int:
        """Return an integer in [0, bound), each equally likely."""
        bits = (bound - 1).bit_length()
        while True:
            value = int.from_bytes(self._take((bits + 7) // 8), "little") & ((1 << bits) - 1)
            if value < bound:
                return value

    def _take(self, count: int) -> bytes:
        if self._used + count > len(self._bytes):
            # an extendable output's prefix never changes, so doubling only reads further
            self._bytes = self._shake.digest(max(_BLOCK, 2 * (self._used + count)))
        start, self._used = self._used, self._used + count
        return self._bytes[start : self._used]


def sample_steps(
    seed: bytes, recorded: Sequence[int], count: int, *, border: int | None = None
) -> list[int]:
    """Return the challenged steps, ascending.

    Args:
        seed: of the challenge, 32 bytes.
        recorded: the steps that can be replayed, ascending.
        count: how many to take, first and last included; all if there are no more.
        border: the first step of the second of two parts; None for three phases.

    Raises:
        OptionError: fewer than one step is asked for, or none is recorded.

    """
    if count < 1 or not recorded:
        raise OptionError(f"cannot sample {count} of {len(recorded)} recorded steps")
    fixed = sorted({recorded[0], recorded[-1]})
    between = list(recorded[1:-1])
    draws = random_draws(len(recorded), count)
    stream = Stream(seed)
    drawn = [_pop(stream, stratum) for stratum in strata(between, draws, border)]
    taken = set(drawn)
    rest = [step for step in between if step not in taken]
    drawn += [_pop(stream, rest) for _ in range(draws - len(drawn))]
    return sorted(fixed + drawn)


def random_draws(recorded: int, count: int) -> int:
    """Return how many of `count` challenged steps are drawn: all but the first and last."""
    return max(min(count, recorded) - 2, 0)


def strata(between: Sequence[int], draws: int, border: int | None) -> list[list[int]]:
    """Return the lists from each of which one step is drawn before the others are."""
    if border is None:
        return phases(between, min(PHASES, draws))
    parts = [[s for s in between if s < border], [s for s in between if s >= border]]
    filled = [part for part in parts if part]
    return filled if draws >= len(filled) else []


def worth(recorded: Sequence[int], count: int, *, border: int | None = None) -> int:
    """Return how many independent draws the random ones are worth (see the module)."""
    draws = random_draws(len(recorded), count)
    parts = 1 if border is None else len(strata(recorded[1:-1], draws, border))
    return draws - max(parts - 1, 0)


def phases(steps: Sequence[int], number: int) -> list[list[int]]:
    """Cut steps into so many consecutive parts whose sizes differ by at most one."""
    cuts = [len(steps) * i // number for i in range(number + 1)] if number else []
    return [list(steps[a:b]) for a, b in pairwise(cuts)]


def _pop(stream: Stream, pool: list[int]) -> int:
    """Draw one step out of the pool; its order changes, which no later draw minds."""
    index = stream.below(len(pool))
    pool[index], pool[-1] = pool[-1], pool[index]
    return pool.pop()
