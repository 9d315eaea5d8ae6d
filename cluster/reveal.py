"""What `bitwitness reveal` does: answer an auditor's challenge of a run that recorded on challenge.

All ranks execute in this process, on this machine's device. The key is not needed: what is
revealed is bound by the log, and signed with it.
"""

from __future__ import annotations

from pathlib import Path

from cluster.border import FAILED, OK, Outcome
from cluster.errors import ExistsError
from cluster.places import existing_run, storage_root
from cluster.progress import stderr_meter
from trainer.config import RunConfig
from trainer.reveal import Revealed, executions, reveal
from transcript.files import write_atomic
from transcript.run import RunFolder
from transcript.statements import read_commitment, read_registration
from verifier.challenge_file import ChallengeRequest, answer_folder, dump_request, load_request
from verifier.files import CHALLENGE_FILE


def reveal_command(run: Path, challenge: Path, out: Path | None, threads: int | None) -> Outcome:
    """Reveal what a challenge asks for; exit code 1 if some of it cannot be.

    Args:
        run: the run's folder.
        challenge: the file that an audit wrote.
        out: folder for the answer; by default in the run's own, where an audit finds it.
        threads: of the emulated device and of hashing; all CPUs by default.

    Raises:
        ExistsError: there is something at the answer's place.
        verifier.errors.OptionError: the file is no challenge, or is none of this run.
        trainer.errors.TrainerError: the run does not record on challenge.
        transcript.errors.TranscriptError: something of the run cannot be read.

    """
    folder = RunFolder(existing_run(run))
    request = load_request(challenge)
    config = check_request(folder, request, str(challenge))
    target = answer_folder(folder.root, request.seed) if out is None else storage_root() / out
    if target.exists():
        msg = f"{target}: there is an answer already"
        raise ExistsError(msg, next_step="hand it over, or choose another --out")
    with stderr_meter() as meter:
        meter.note(f"revealing {len(request.steps)} steps of {folder.root}")
        meter.start("reveal", executions(config, request.steps))
        revealed = reveal(
            folder,
            request.steps,
            target,
            threads=threads,
            on_step=lambda done: meter.advance(done, "as committed"),
        )
    write_atomic(target / CHALLENGE_FILE, dump_request(request))
    return _outcome(revealed)


def check_request(folder: RunFolder, request: ChallengeRequest, file: str) -> RunConfig:
    """Check that a challenge is one of this run and draws what it asks for.

    Returns:
        The run's configuration.

    Raises:
        verifier.errors.OptionError: it does not.
        transcript.errors.TranscriptError: the run's statements cannot be read.

    """
    registration = read_registration(folder)
    commitment = read_commitment(folder, registration)
    config = RunConfig.from_document(registration.predicate.config, name=str(folder.registration))
    request.check(commitment.digest, config.record.challenged(config.train.steps), file=file)
    return config


def _outcome(revealed: Revealed) -> Outcome:
    document = {
        "revealed": str(revealed.folder),
        "steps": [*revealed.steps],
        "withheld": {str(step): why for step, why in revealed.withheld.items()},
        "executed": revealed.executed,
    }
    executed = f"{revealed.executed} executed again, each as it was committed"
    lines = [
        f"Revealed   {len(revealed.steps)} steps; {executed}",
        *(f"Withheld   {step}: {why}" for step, why in revealed.withheld.items()),
        f"Folder     {revealed.folder}",
        "Next       hand this folder to the auditor: bitwitness audit RUN ... --revealed FOLDER",
    ]
    exit_code = FAILED if revealed.withheld else OK
    return Outcome(document=document, text="\n".join(lines), exit_code=exit_code)
