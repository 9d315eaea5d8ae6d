"""What `bitwitness verify` and `report` do: check signed statements one by one, offline.

Every file is checked, also after a bad one; the exit code is the first fault's. An audit result
whose verdict is not PASS is a good statement of a bad run: it exits with 1 too, so that a
script which asks for a verified run gets no for an answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster.border import FAILED, OK, Outcome, describe, expected
from transcript.keys import PublicKey
from verifier.verify import Verified, verify_file


def verify_command(files: Sequence[Path], trust: Path | None, run: Path | None) -> Outcome:
    """Check statements against a trusted key, or the keys beside them.

    Args:
        files: DSSE envelopes.
        trust: the key that must have signed them all.
        run: the folder that an audit result must be about.

    """
    key = PublicKey.load(trust) if trust else None
    answers = [_verify(path, key, run) for path in files]
    codes = [code for _, _, code in answers]
    return Outcome(
        document={"statements": [document for document, _, _ in answers]},
        text="\n".join(text for _, text, _ in answers if text),
        exit_code=next((code for code in codes if code != OK), OK),
    )


def report_command(folder: Path) -> Outcome:
    """Write an audit's report.html again; see `verifier.report.write_report` for the errors."""
    # The page's templates are no business of whoever checks a statement.
    from verifier.report import write_report

    page = write_report(folder)
    return Outcome(document={"report": str(page)}, text=str(page))


def _verify(path: Path, key: PublicKey | None, run: Path | None) -> tuple[dict[str, Any], str, int]:
    """Return one statement's JSON object, its line for people, and its exit code."""
    try:
        verified = verify_file(path, key, run=run)
    except Exception as error:
        if not expected(error):
            raise
        fault = describe(error)
        print(fault.line(), file=sys.stderr, flush=True)
        failure = {"code": fault.code, "message": fault.message}
        return {"file": str(path), "ok": False, "error": failure}, "", fault.exit_code
    passed = verified.facts.get("verdict", "PASS") == "PASS"
    return {"ok": True, **asdict(verified)}, _text(verified), OK if passed else FAILED


def _text(verified: Verified) -> str:
    when = f", {verified.created}" if verified.created else ""
    noun = "run" if verified.subject == "training" else verified.subject
    whose = "trusted key" if verified.trusted else "key (not known beforehand)"
    return "\n".join(
        (
            f"Good       {verified.kind} of {noun} {verified.run_id}{when}",
            f"File       {verified.file}",
            f"Signed by  {whose} {verified.key_id}",
            *(f"{name:<10} {value}" for name, value in verified.facts.items()),
        )
    )
