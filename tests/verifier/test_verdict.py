"""The table of verdicts, and that errors survive a process boundary."""

import pickle

import pytest

from transcript.errors import MalformedError, MissingError, SignatureError
from verifier import errors
from verifier.verdict import Overall, Verdict, compared, exit_code, from_error, overall

V, O = Verdict, Overall  # noqa: E741


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        ([], O.INCOMPLETE),
        ([V.MATCH], O.PASS),
        ([V.MATCH, V.MATCH], O.PASS),
        ([V.MATCH, V.MISMATCH], O.FAIL),
        ([V.MATCH, V.INVALID_COMMITMENT], O.FAIL),
        ([V.MATCH, V.NON_RESPONSE], O.INCOMPLETE),
        ([V.MATCH, V.INCONCLUSIVE], O.INCOMPLETE),
        ([V.MATCH, V.DECLARED_FAULT], O.INCOMPLETE),
        ([V.NON_RESPONSE, V.MISMATCH], O.FAIL),
        ([V.INCONCLUSIVE, V.INVALID_COMMITMENT, V.DECLARED_FAULT], O.FAIL),
    ],
)
def test_overall(verdicts, result):
    """FAIL beats INCOMPLETE beats PASS, and nothing checked is never PASS."""
    assert overall(verdicts) is result
    assert exit_code(result) == (0 if result is O.PASS else 1)


def test_every_verdict_but_match_keeps_from_passing():
    """PASS needs MATCH everywhere."""
    for verdict in Verdict:
        assert (overall([V.MATCH, verdict]) is O.PASS) == (verdict is V.MATCH)


def test_compared():
    """Equal strings match; different ones carry both as evidence."""
    assert compared("a.b", "same", expected="x", found="x").verdict is V.MATCH
    check = compared("a.b", "same", expected="x", found="y")
    assert check.verdict is V.MISMATCH
    assert check.evidence == {"expected": "x", "found": "y"}


def test_from_error():
    """Missing is NON_RESPONSE; anything else wrong with the prover's bytes breaks the claim."""
    assert from_error("a", MissingError("gone", file="f")).verdict is V.NON_RESPONSE
    assert from_error("a", MalformedError("bad")).verdict is V.INVALID_COMMITMENT
    check = from_error("a", SignatureError("no", file="f"))
    assert check.verdict is V.INVALID_COMMITMENT
    assert check.evidence["code"] == "E_SIGNATURE"
    assert check.detail == "f: no"


@pytest.mark.parametrize(
    "kind",
    [
        errors.OptionError, errors.BeaconError, errors.BudgetError, errors.RunError,
        errors.ResultError, errors.UntrustedError,
    ],
)  # fmt: skip
def test_errors_cross_processes(kind):
    """An error keeps its class, code, file and message when it is pickled."""
    error = pickle.loads(pickle.dumps(kind("bad\nline", file="a\x1b[0m")))  # noqa: S301
    assert type(error) is kind
    assert str(error) == r"a\x1b[0m: bad\nline"
    assert error.code.startswith("E_")
    assert kind.code in (errors.__doc__ or "")
