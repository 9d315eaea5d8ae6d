"""The audit job: `python -m cluster.audit RUN`, and what `bitwitness audit` calls.

RUN is the folder of a training run, or of a generation.

Structure checks run here while the workers start; then the challenged steps go to verifier
actors of the auditor's own Ray, to processes, or are replayed in this process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cluster.border import Outcome, one_line

if TYPE_CHECKING:
    from cluster.pool import Mapper
    from cluster.progress import Meter
    from transcript.keys import PrivateKey
    from verifier.audit import Audit, AuditOptions
    from verifier.report_data import ReportData
    from verifier.step_report import StepReport

_TERA: Final = 10**12
_SHOWN_FAULTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who replays.

    Attributes:
        ray: verifier actors on Ray, or else processes of this machine.
        address: of a Ray cluster; RAY_ADDRESS or a private one by default.
        count: how many replay at once; by default as many as fit on Ray's CPUs, or this
            process alone.
        threads: of each; by default 1 on Ray, else this process's share of the CPUs.

    """

    ray: bool = True
    address: str | None = None
    count: int | None = None
    threads: int | None = None

    def threads_each(self) -> int:
        """Return the threads of one worker."""
        return self.threads or (1 if self.ray else max(_cpus() // (self.count or 1), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The arguments of an audit as given on the command line.

    `run` is what is audited; `trained` is the training run of a generation, `--run`.
    """

    run: Path
    trained: Path | None = None
    steps: int = 8
    beacon: Path | None = None
    beacon_hex: str | None = None
    nonce: str | None = None
    out: Path | None = None
    key: Path | None = None
    trust: Path | None = None
    budget: float | None = None
    revealed: Path | None = None
    workers: Workers = Workers()


def audit_command(request: AuditRequest) -> Outcome:
    """Audit a run as asked and say what came of it; exit code 1 unless it passes."""
    from cluster.places import audit_folder, audit_key_paths, existing_run, signing_key
    from cluster.progress import stderr_meter
    from transcript.keys import PrivateKey

    options = audit_options(request)
    run = existing_run(request.run)
    out = audit_folder(run, request.out)
    key = signing_key(request.key, *audit_key_paths(out))
    with stderr_meter() as meter:
        outcome = audit(run, options, out, PrivateKey.load(key), request.workers, meter)
    return _asking(outcome, request)


def audit_options(request: AuditRequest) -> AuditOptions:
    """Parse what the verifier needs.

    Raises:
        UsageError: two beacons are given.
        verifier.errors.VerifierError: an option is out of range.
        transcript.errors.TranscriptError: the trusted key is not one.

    """
    from cluster.errors import UsageError
    from cluster.places import existing_run
    from transcript.keys import PublicKey
    from verifier.audit import AuditOptions
    from verifier.beacon import NO_BEACON, beacon_from_file, beacon_from_hex
    from verifier.challenge import nonce_from_hex

    beacon = NO_BEACON
    if request.beacon and request.beacon_hex:
        msg = "--beacon and --beacon-hex exclude each other"
        raise UsageError(msg)
    if request.beacon:
        beacon = beacon_from_file(request.beacon)
    elif request.beacon_hex:
        beacon = beacon_from_hex(request.beacon_hex)
    given: dict[str, Any] = {}
    if request.nonce is not None:
        given["nonce"] = nonce_from_hex(request.nonce)
    return AuditOptions(
        steps=request.steps,
        beacon=beacon,
        threads=request.workers.threads_each(),
        budget=None if request.budget is None else round(request.budget * _TERA),
        trusted=(PublicKey.load(request.trust),) if request.trust else (),
        run=existing_run(request.trained) if request.trained else None,
        revealed=request.revealed,
        **given,
    )


def audit(
    run: Path,
    options: AuditOptions,
    out: Path,
    key: PrivateKey,
    workers: Workers,
    meter: Meter,
) -> Outcome:
    """Audit one run and write the signed result and the report to `out`.

    Raises:
        cluster.errors.ClusterError: Ray or a worker fails.
        verifier.errors.VerifierError: the audit cannot be made.
        transcript.errors.StorageError: the disk fails.

    """
    from verifier.audit import Audit
    from verifier.files import CHALLENGE_FILE

    began = time.perf_counter()
    meter.note(f"auditing {run}")
    with Audit.open(run, options) as opened:
        samples = len(opened.samples())
        with ThreadPoolExecutor(1) as beside:
            structure = beside.submit(opened.structure)
            asks = opened.open_challenge
            with _mapper(Workers(ray=False) if asks else workers, samples) as mapper:
                structure.result()
                reports = _replay(opened, mapper, samples, meter)
        result = opened.conclude(reports, out, key)
    outcome = audit_outcome(result, time.perf_counter() - began)
    challenge = str(result.with_name(CHALLENGE_FILE)) if asks else None
    return replace(outcome, document={**outcome.document, "challenge": challenge})


def _asking(outcome: Outcome, request: AuditRequest) -> Outcome:
    """Add what to do about steps that the trainer has to reveal first, if there are any."""
    from verifier.files import CHALLENGE_FILE

    challenge = outcome.document["challenge"]
    if challenge is None:
        return outcome
    beacon = f" --beacon {request.beacon}" if request.beacon else ""
    beacon += f" --beacon-hex {request.beacon_hex}" if request.beacon_hex else ""
    trust = f" --trust {request.trust}" if request.trust else ""
    again = f"--steps {request.steps} --nonce {outcome.document['nonce']}{beacon}{trust}"
    lines = [
        f"Challenge  {challenge}: send it to the trainer, who answers it with",
        f"           bitwitness reveal RUN --challenge {CHALLENGE_FILE}",
        f"Next       bitwitness audit {request.run} {again} --revealed FOLDER",
    ]
    return replace(outcome, text="\n".join((outcome.text, *lines)))


def _replay(opened: Audit, mapper: Mapper, total: int, meter: Meter) -> list[StepReport]:
    done: list[StepReport] = []
    meter.start("audit", total)

    def progress(report: StepReport) -> None:
        done.append(report)
        bad = [r for r in done if str(r.verdict) != "MATCH"]
        verdict = f"step {bad[0].step}: {bad[0].verdict}" if bad else "all match so far"
        meter.advance(len(done), verdict)

    return opened.run(mapper, progress)


@contextmanager
def _mapper(workers: Workers, tasks: int) -> Iterator[Mapper]:
    from cluster import pool

    threads = workers.threads_each()
    if workers.ray:
        from cluster.ray_session import ray_session

        wanted = workers.count or max(_cpus() // threads, 1)
        with ray_session(workers.address, cpus=wanted * threads):
            count = min(workers.count or _ray_workers(threads), tasks)
            with pool.ray_actors(count, threads) as mapper:
                yield mapper
    elif (workers.count or 1) == 1:
        yield pool.inline
    else:
        with pool.processes(min(workers.count or 1, tasks), threads) as mapper:
            yield mapper


def _ray_workers(threads: int) -> int:
    """Return how many verifier actors find room on the cluster now; at least one."""
    import ray

    available: Any = ray.available_resources
    return max(int(available().get("CPU", 0) // threads), 1)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def audit_outcome(result: Path, seconds: float) -> Outcome:
    """Say what an audit came to, from the report that its signed result names."""
    from verifier.files import PROOF_FILE
    from verifier.report import REPORT_HTML, REPORT_JSON
    from verifier.report_data import from_json
    from verifier.verdict import exit_code

    source = result.with_name(REPORT_JSON)
    data = from_json(source.read_bytes(), file=str(source))
    faults = [
        *(f"{c.name}: {c.verdict}: {c.detail}" for c in data.checks if not c.ok),
        *(
            f"step {report.step}: {c.name}: {c.verdict}: {c.detail}"
            for report in data.steps
            for c in report.checks
            if not c.ok
        ),
    ]
    page, proof = result.with_name(REPORT_HTML), result.with_name(PROOF_FILE)
    proofs = [str(proof)] if proof.exists() else []
    replayed = sum(report.operators > 0 for report in data.steps)
    document = {
        "verdict": str(data.overall),
        "run_id": data.run.run_id,
        "result": str(result),
        "report": str(page),
        "fraud_proof": proofs[0] if proofs else None,
        "sampled": len(data.steps),
        "steps": data.run.steps,
        "f_max": data.draw.f_max,
        "delta": data.draw.delta,
        "structure_checks": len(data.checks),
        "faults": faults,
        "nonce": data.draw.nonce,
        "seconds": round(seconds, 3),
        "replay_ms": [report.milliseconds for report in data.steps],
        **_generated(data),
    }
    lines = [
        f"Verdict    {data.overall}",
        f"Replayed   {replayed} of {data.run.steps} steps in {seconds:.1f} s",
        f"Bound      {_bound(data)}",
        *_text(data),
        *(f"Fault      {one_line(fault)}" for fault in faults[:_SHOWN_FAULTS]),
        *(f"Proof      {path}: bitwitness verify checks it" for path in proofs),
        f"Result     {result}",
        f"Report     {page}",
    ]
    return Outcome(document=document, text="\n".join(lines), exit_code=exit_code(data.overall))


def _generated(data: ReportData) -> dict[str, Any]:
    """Return what is said of a generated text, as JSON; nothing of a training run."""
    facts = data.text
    if facts is None:
        return {}
    words = {"trained": facts.run, "commitment": facts.commitment, "cache": facts.cache}
    return {"generation": {**words, "prompt_bytes": facts.prompt, "text_hex": facts.text}}


def _text(data: ReportData) -> list[str]:
    """Return the lines that show a generated text: prompt and what follows it."""
    from verifier.text_view import one_line as escaped

    facts = data.text
    if facts is None:
        return []
    text = bytes.fromhex(facts.text)
    return [
        f"Weights    of run {facts.run}",
        f'Prompt     "{escaped(text[: facts.prompt])}"',
        f'Text       "{escaped(text[facts.prompt :])}"',
    ]


def _bound(data: ReportData) -> str:
    if data.draw.f_max is None:
        return "none: not everything matched"
    if len(data.steps) == data.run.recorded:
        return "not needed: every recorded step was replayed"
    if float(data.draw.f_max) == 1:
        return "none: beside the first and the last step nothing was drawn"
    share, confidence = 100 * float(data.draw.f_max), 100 * (1 - float(data.draw.delta))
    return f"at most {share:.1f} % of the steps are bad, at {confidence:g} % confidence"


if __name__ == "__main__":
    from cluster.cli import main

    main("audit")
