"""The command line: `bitwitness COMMAND`, and `python -m cluster.train|audit` inside Ray jobs.

Commands parse their arguments and return the same functions that the jobs call. Heavy packages
are imported inside the commands, so that `--help` answers at once.
"""
# ruff: noqa: ARG001, D301, FBT002
# Typer reads signatures: options are parameters with defaults, also --json and --debug, which
# the border reads from the arguments; and click's \b marks must be one character.

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cluster import border
from cluster.border import Outcome
from cluster.errors import UsageError

# What typer raises for a bad command line. It has no public name of its own: releases differ
# in whether click is a dependency or a copy inside.
_CommandLineError: type[Any] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="bitwitness",
    help=(
        "Train on GPUs, commit every step, and let anyone with a CPU check the training\n"
        "bit for bit.\n\n\b\n"
        "Examples:\n  bitwitness train configs/demo.yaml\n"
        "  bitwitness audit runs/demo --trust runs/demo.pub.pem\n"
        "\n\b\n"
        "Exit codes: 0 verified or done, 1 a verification failed, 2 bad input or\n"
        "usage, 3 environment (Ray, disk, device, interrupted)."
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Command = Callable[[], Outcome]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A running Ray cluster, or auto. Default: RAY_ADDRESS, else a private local Ray.",
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Audited = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a training run or of a generation.")
]


@app.command()
def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML file of the run: configs/demo.yaml.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder for the run. Default: runs/NAME.")
    ] = None,
    address: Address = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Ed25519 key that signs the run. Default: a new one beside the run.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    scrub: Annotated[
        bool,
        typer.Option(
            "--scrub", help="With --resume: redo logged steps, declare those faulty that differ."
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Train a model, commit every step, sign the result.

    \b
    Examples:
      bitwitness train configs/demo.yaml
      bitwitness train configs/demo.yaml --out /shared/run-7 --address auto
    """
    from cluster.train import train_command

    return partial(
        train_command, config, out=out, address=address, key=key, resume=resume, scrub=scrub
    )


@app.command()
def audit(
    folder: Audited,
    trained: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="The training run that a generation came from. Default: the one it lies in.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="K", min=1, help="Steps to replay, first and last included.")
    ] = 8,
    beacon: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public randomness newer than the commitment: a drand answer or any file.",
        ),
    ] = None,
    beacon_hex: Annotated[
        str | None, typer.Option(metavar="HEX", help="The same, given as hex.")
    ] = None,
    nonce: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The auditor's 32-byte nonce. Default: a random one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the result. Default: RUN.audits/NNN."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Key that signs the result. Default: RUN.audits/key.pem, made if missing.",
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM", help="The trainer's public key. Default: whichever signed the run."
        ),
    ] = None,
    address: Address = None,
    no_ray: Annotated[bool, typer.Option("--no-ray", help="Replay without Ray.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Steps replayed at once. Default: one per CPU; 1 with --no-ray.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Threads of a worker. Default: 1; all with --no-ray."
        ),
    ] = None,
    revealed: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="What the trainer revealed, of a run that recorded on challenge. Default: the "
            "answer to this challenge in the run's folder.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="TERA", help="Refuse an audit above so many tera multiply-accumulates."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Check every step's structure, and random steps bit by bit.

    \b
    Examples:
      bitwitness audit runs/demo
      bitwitness audit runs/demo/generations/ID
      bitwitness audit runs/demo --steps 20 --beacon round.json --trust pub.pem
      bitwitness audit runs/demo --no-ray --workers 1
    """
    from cluster.audit import AuditRequest, Workers, audit_command

    request = AuditRequest(
        run=folder,
        trained=trained,
        steps=steps,
        beacon=beacon,
        beacon_hex=beacon_hex,
        nonce=nonce,
        out=out,
        key=key,
        trust=trust,
        budget=budget,
        revealed=revealed,
        workers=Workers(ray=not no_ray, address=address, count=workers, threads=threads),
    )
    return partial(audit_command, request)


@app.command()
def reveal(
    run: Run,
    challenge: Annotated[
        Path, typer.Option(metavar="FILE", help="challenge.json that an audit wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for the answer. Default: in the run's own."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads of a rank. Default: all.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Execute again the steps that an audit drew, for its auditor.

    For runs that record on challenge: they keep roots and some states only.

    \b
    Example:
      bitwitness reveal runs/demo --challenge challenge.json --out answer
    """
    from cluster.reveal import reveal_command

    return partial(reveal_command, run, challenge, out, threads)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an audit.")],
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Write report.html again from an audit's signed result.

    \b
    Example:
      bitwitness report runs/demo.audits/001
    """
    from cluster.verify import report_command

    return partial(report_command, folder)


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Signed statements.")],
    trust: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="The key that must have signed. Default: the one that lies beside the file.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="What an audit result must be about."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Check signed statements offline: signature, type and form.

    An audit result that is not PASS exits with 1, however good its signature.

    \b
    Examples:
      bitwitness verify runs/demo/commitment.dsse.json --trust trainer.pub.pem
      bitwitness verify runs/demo.audits/001/*.dsse.json --run runs/demo
    """
    from cluster.verify import verify_command

    return partial(verify_command, files, trust, run)


@app.command()
def inspect(run: Audited, as_json: Json = False, debug: Debug = False) -> Command:
    """Say what a run's folder holds, without judging it.

    \b
    Example:
      bitwitness inspect runs/demo
    """
    from cluster.describe import inspect_command

    return partial(inspect_command, run)


@app.command()
def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Private key to make; PATH.pub.pem beside it.")
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Make an Ed25519 key pair.

    \b
    Example:
      bitwitness keygen ~/keys/trainer.pem
    """
    from cluster.places import keygen_command

    return partial(keygen_command, path)


@app.command()
def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to continue.")],
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Bytes to generate.")] = 32,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for it. Default: RUN/generations/ID."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Key that signs it. Default: the run's own."),
    ] = None,
    cache: Annotated[
        Literal["int16", "f32"], typer.Option(help="How keys and values are kept.")
    ] = "int16",
    device: Annotated[
        Literal["emulated", "cuda"] | None,
        typer.Option(help="Where it is computed. Default: where the run was."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Continue a prompt with a run's weights, committed like training.

    Prompt and text together fit the model's context. `bitwitness audit` on the
    folder that it names replays it.

    \b
    Example:
      bitwitness generate runs/demo --prompt "def main(" --tokens 40
    """
    from cluster.generate import generate_command

    return partial(generate_command, run, prompt, tokens, out, key, cache, device)


@app.command()
def probe(
    arch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="An emulated architecture. Default: this machine's GPU."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="YAML", help="Architecture file to write.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Its architecture's name.")] = "probed",
    checks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Random inputs after the designed ones.")
    ] = 20_000,
    brief: Annotated[bool, typer.Option("--brief", help="Findings without experiments.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Command:
    """Find out how a tensor core adds, by designed inputs.

    \b
    Examples:
      bitwitness probe --out my_gpu.yaml --name my_gpu
      bitwitness probe --arch hopper --brief
    """
    from cluster.probe import probe_command

    return partial(probe_command, arch, out, name, checks, explain=not brief)


def main(command: str | None = None) -> None:
    """Run the command line, or one command of it as a module, and exit with its code."""
    raise SystemExit(run(sys.argv[1:], command))


def run(arguments: Sequence[str], command: str | None = None) -> int:
    """Run the command line and return its exit code; `command` is already chosen if given."""
    return border.run(
        lambda: _perform(list(arguments) or ["--help"], command),
        as_json="--json" in arguments,
        debug="--debug" in arguments,
    )


def _perform(arguments: list[str], command: str | None) -> Outcome:
    """Parse, then work outside of typer, which would turn an interrupt into a silent exit."""
    parser: Any = typer.main.get_command(app)
    program = "bitwitness"
    if command is not None:
        parser, program = parser.commands[command], f"python -m cluster.{command}"
    try:
        result = parser.main(arguments, prog_name=program, standalone_mode=False)
    except _CommandLineError as error:
        raise UsageError(error.format_message(), next_step=f"see {program} --help") from None
    # --help prints by itself and returns an exit code
    return result() if callable(result) else Outcome(exit_code=result or 0)


if __name__ == "__main__":
    main()
