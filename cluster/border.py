"""Where exceptions end: every expected one becomes a line on stderr and an exit code.

Exit codes: 0 verified or done, 1 a verification failed, 2 bad input or usage, 3 environment
(Ray, disk, device, an interrupt, or a bug of ours). A line reads
`bitwitness: CODE: what is wrong; what to do next`. An exception nobody expected is a bug: its
traceback goes to a file that the line names, or to stderr with --debug.

The error classes of the packages below are known here by their stable codes, so nothing heavy
is imported to print a usage error.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
ENVIRONMENT: Final = 3

# Codes that are neither bad input nor without a next step worth naming.
_EXITS: Final[dict[str, int]] = {
    "E_DIVERGENCE": FAILED,
    "E_FORK": FAILED,
    "E_PROOF": FAILED,
    "E_RESULT": FAILED,
    "E_SIGNATURE": FAILED,
    "E_SILENT_FAULT": FAILED,
    "E_UNTRUSTED": FAILED,
    "E_ACTOR_LOST": ENVIRONMENT,
    "E_FLOAT_ENVIRONMENT": ENVIRONMENT,
    "E_NO_DEVICE": ENVIRONMENT,
    "E_NO_GPU": ENVIRONMENT,
    "E_PLACEMENT": ENVIRONMENT,
    "E_RAY": ENVIRONMENT,
    "E_STORAGE": ENVIRONMENT,
}
_NEXT_STEPS: Final[dict[str, str]] = {
    "E_BUDGET": "raise --budget if the cost is acceptable",
    "E_CONFIG": "configs/demo.yaml is a complete example",
    "E_DIVERGENCE": "keep the run: it is evidence of a faulty machine or of changed input",
    "E_FORK": "keep the run: --resume --scrub can declare the logged step faulty",
    "E_NONFINITE": "lower optim.learning_rate or raise optim.warmup_steps",
    "E_NO_GPU": "device: emulated gives the same bits on a CPU",
    "E_SILENT_FAULT": "do not trust this machine; the log so far is intact, resume elsewhere",
    "E_STORAGE": "check free space and permissions; what was written before is intact",
    "E_VERSION": "use the version of Bitwitness that made it",
}
_FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LINE_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command answers: a JSON object, the same for people, and the exit code."""

    document: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    exit_code: int = OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An exception as the user sees it."""

    code: str
    message: str
    next_step: str
    exit_code: int

    def line(self) -> str:
        """Return the one line for stderr."""
        text = f"{self.message}; {self.next_step}" if self.next_step else self.message
        return f"bitwitness: {self.code}: {one_line(text)}"


def run(command: Callable[[], Outcome], *, as_json: bool, debug: bool) -> int:
    """Run a command, print its outcome or its one line of error, return the exit code."""
    try:
        outcome = command()
        _print_outcome(outcome, as_json=as_json)
    except BrokenPipeError:
        # The reader of our output is gone: there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ENVIRONMENT
    except KeyboardInterrupt as error:
        return _fail(describe(error), as_json=as_json)
    except Exception as error:  # noqa: BLE001  # this is the border
        if debug:
            traceback.print_exc()
        return _fail(describe(error) if expected(error) else _bug(error), as_json=as_json)
    return outcome.exit_code


def expected(error: BaseException) -> bool:
    """Whether an exception is one that the user can act on."""
    return isinstance(error, (OSError, KeyboardInterrupt, MemoryError)) or _code(error) != ""


def describe(error: BaseException) -> Fault:
    """Translate an expected exception."""
    code = _code(error)
    if code:
        next_step = getattr(error, "next_step", "") or _NEXT_STEPS.get(code, "")
        return Fault(
            code=code,
            message=str(error),
            next_step=next_step,
            exit_code=_EXITS.get(code, BAD_INPUT),
        )
    if isinstance(error, KeyboardInterrupt):
        return Fault(
            code="E_INTERRUPTED",
            message="interrupted",
            next_step="what was written before is intact",
            exit_code=ENVIRONMENT,
        )
    if isinstance(error, MemoryError):
        return Fault(
            code="E_MEMORY",
            message="out of memory",
            next_step="use fewer workers or threads, or a smaller model",
            exit_code=ENVIRONMENT,
        )
    return _os_fault(error if isinstance(error, OSError) else OSError(str(error)))


def one_line(text: str) -> str:
    """Escape everything unprintable and cut: a stranger's bytes reach messages."""
    shown = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= _LINE_LIMIT else f"{shown[:_LINE_LIMIT]}..."


def _code(error: BaseException) -> str:
    code = getattr(error, "code", "")
    if isinstance(code, str) and code.startswith("E_"):
        return code
    # Ray's own errors, where no module of ours translated them.
    return "E_RAY" if type(error).__module__.startswith("ray.") else ""


def _os_fault(error: OSError) -> Fault:
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error) or type(error).__name__
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
    if error.errno in _FULL_DISK:
        next_step = "free some space; what was written before is intact"
    else:
        next_step = "" if missing else "check permissions and the file system"
    return Fault(
        code="E_FILE" if missing else "E_SYSTEM",
        message=f"{where}{reason}",
        next_step=next_step,
        exit_code=BAD_INPUT if missing else ENVIRONMENT,
    )


def _bug(error: Exception) -> Fault:
    where = "--debug shows the traceback"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="bitwitness-bug-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
        where = f"the traceback is in {file.name}"
    except OSError:
        pass  # no room for the file: the line below still says what happened
    return Fault(
        code="E_BUG",
        message=f"unexpected {type(error).__name__}: {error}",
        next_step=f"please report it: {where}",
        exit_code=ENVIRONMENT,
    )


def _print_outcome(outcome: Outcome, *, as_json: bool) -> None:
    text = json.dumps(outcome.document, indent=2) if as_json else outcome.text
    if text:
        print(text, flush=True)


def _fail(fault: Fault, *, as_json: bool) -> int:
    print(fault.line(), file=sys.stderr, flush=True)
    if as_json:
        error = {"code": fault.code, "message": fault.message, "next_step": fault.next_step}
        print(json.dumps({"error": error, "exit_code": fault.exit_code}, indent=2), flush=True)
    return fault.exit_code
