"""Which attempt a run says it is: `registration.attempts`.

A registration names the one before by the same key at the same place, and the run's folder has
copies of these. That chain is checked; that it is all there was cannot be.
"""

from __future__ import annotations

from itertools import pairwise

from trainer.attempts import COPIED
from transcript.errors import MissingError, ProofError
from transcript.statements import Registration, Signed, open_statement
from verifier.context import RunContext
from verifier.verdict import Check, match

NAME = "registration.attempts"
_LIMIT = 64 << 20
_NAMED = 8


def check_attempts(context: RunContext) -> list[Check]:
    """Return the check of the attempts before this one.

    Raises:
        transcript.errors.TranscriptError: they are missing, malformed, or not the chain that the
            registration ends.
        StorageError: the disk fails.

    """
    said = context.registration
    if said.attempt == 1:
        return [match(NAME, "its key says that it registered no run at its place before")]
    before = _earlier(context)
    _check_chain(context, before)
    named = [f"{signed.predicate.run_id} of {signed.predicate.created}" for signed in before]
    left = said.attempt - 1 - min(len(named), _NAMED)
    others = f" and {left} earlier" if left else ""
    which = "the one before is" if said.attempt == 2 else f"the {said.attempt - 1} before are"
    return [
        match(
            NAME,
            f"attempt {said.attempt}; {which} {', '.join(named[::-1][:_NAMED])}{others}",
            attempt=str(said.attempt),
        )
    ]


def _earlier(context: RunContext) -> list[Signed[Registration]]:
    path = context.folder.attempts
    lines = context.folder.read(path, _LIMIT).splitlines()
    return [
        open_statement(line, Registration, [context.key], file=f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
    ]


def _check_chain(context: RunContext, before: list[Signed[Registration]]) -> None:
    said, file = context.registration, str(context.folder.attempts)
    if len(before) < min(said.attempt - 1, COPIED):
        raise MissingError(f"has {len(before)} of {said.attempt - 1} earlier attempts", file=file)
    links = [(one.predicate.attempt, one.digest) for one in before]
    names = [(one.predicate.attempt - 1, one.predicate.previous) for one in before]
    chain = [*names[1:], (said.attempt - 1, said.previous)]
    if links != chain or any(a[0] + 1 != b[0] for a, b in pairwise(links)):
        raise ProofError("is not the chain of attempts that the registration names", file=file)
