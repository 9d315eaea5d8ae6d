"""The same answers on different GPUs: greedy decoding on four emulated architectures.

A small model answers prompts of several kinds of real text under each profile. Printed are

* the share of prompts whose bytes are the same on every architecture, and where others part;
* what is behind it: the share of logits with the same bits on all, while the text is the same,
  the largest difference of a logit, and how many decisions had a smaller lead than that;
* the share of prompts answered as by `fp32`;
* the size of the cache of keys and values, and the cost beside `fp32`, both emulated on a CPU.

    python -m benchmarks.reproducibility [RUN] [--prompts N] [--profiles fp32,bf16]

RUN is a finished training run; without it the demo's model is trained first.
"""

from __future__ import annotations

import argparse
import gzip
import platform
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cluster.config import load_job
from emulator_ext import UnsupportedError
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.generate import GenerationConfig, TrainedModel, decode, derive_decode_graph
from trainer.generate.config import Cache
from trainer.generate.step import cache_bytes
from trainer.graph import Value
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from transcript.keys import PrivateKey
from transcript.run import RunFolder

ARCHITECTURES = ("volta", "ampere", "ada", "hopper")
# Profile and the cache that goes with it. `fp32` and `bf16` are what is run today; `heal` with
# an f32 cache shows the products alone, with an INT16 cache HEAL's attention.
ROWS: tuple[tuple[str, Cache], ...] = (
    ("fp32", "f32"),
    ("bf16", "f32"),
    ("heal", "f32"),
    ("heal", "int16"),
    ("exact", "int16"),
)
PROMPTS = 210
PROMPT_BYTES = 24
TRAINING_STEPS = 240
CONTEXT = 128
_SMALLEST_FILE = 4096

_PACKAGES = Path(sysconfig.get_paths()["purelib"])
_SHARE = Path("/usr/share")
# Where texts of a kind lie on a usual machine, and how their names end.
KINDS: Mapping[str, tuple[tuple[Path, str], ...]] = {
    "python": ((Path(sysconfig.get_paths()["stdlib"]), "*.py"),),
    "licence": ((_SHARE / "common-licenses", "*"), (_PACKAGES, "LICENSE*")),
    "plain text": ((_SHARE / "doc", "*.txt"), (_PACKAGES, "*.txt")),
    "manual page": ((_SHARE / "man/man1", "*.gz"), (_SHARE / "man/man3", "*.gz")),
    "reStructuredText": ((_SHARE / "doc", "*.rst"), (_PACKAGES, "*.rst")),
    "HTML": ((_SHARE / "doc", "*.html"), (_PACKAGES, "*.html")),
    "JSON": ((_PACKAGES, "*.json"), (_SHARE, "*.json")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far logits of one text are apart over architectures.

    Attributes:
        same: share that has the same bits everywhere.
        largest: the largest difference, in logits.
        narrow: decisions whose lead over the second best is no larger than their own spread.
        decisions: how many bytes were decided on the same text.

    """

    same: float
    largest: float
    narrow: int
    decisions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One profile over all architectures.

    Attributes:
        texts: u8 [prompts, prompt + tokens] by architecture.
        spread: of the logits.
        lacking: architectures without the instruction.
        seconds: of one decoding, mean over architectures.
        cache: bytes of keys and values a prompt.

    """

    texts: Mapping[str, NDArray[np.uint8]]
    spread: Spread
    lacking: tuple[str, ...]
    seconds: float
    cache: int


def main() -> None:
    """Train or load, decode everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="a finished training run")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="how many, of all kinds")
    profiles = ",".join(dict.fromkeys(profile for profile, _ in ROWS))
    parser.add_argument("--profiles", default=profiles, help="some of %(default)s")
    given = parser.parse_args()
    rows = [row for row in ROWS if row[0] in given.profiles.split(",")]
    if given.run is not None:
        report(TrainedModel.read(RunFolder(given.run)), given.prompts, rows)
        return
    with tempfile.TemporaryDirectory() as root:
        report(train(RunFolder(Path(root) / "run")), given.prompts, rows)


def train(folder: RunFolder) -> TrainedModel:
    """Train the demo's model for longer than the demo does, in `fp32`."""
    document = load_job(Path("configs/demo.yaml")).run.document()
    document["numerics"]["profile"] = "fp32"
    document["model"]["context"] = CONTEXT
    document["train"].update(steps=TRAINING_STEPS, batch=4)
    document["record"].update(policy="every", every=TRAINING_STEPS)
    config = RunConfig.from_document(document)
    key = PrivateKey.generate()
    prepare_run(config, folder, key)
    rank, committer = RankTrainer(config, folder), Committer(config, folder, key)
    for _ in range(TRAINING_STEPS):
        step = rank.run_step()
        committer.append([step])
    committer.finish()
    print(f"trained {TRAINING_STEPS} steps in fp32: loss {step.metric('loss'):.2f} nats a byte")
    return TrainedModel.read(folder)


def report(model: TrainedModel, count: int, rows: Sequence[tuple[str, Cache]]) -> None:
    """Decode with each profile on every architecture and print what came out."""
    kinds = prompts_of(PROMPT_BYTES, count)
    prompts = [prompt for group in kinds.values() for prompt in group]
    tokens = model.config.model.context - PROMPT_BYTES + 1
    print(
        f"{processor()}: {len(prompts)} prompts of {PROMPT_BYTES} bytes, "
        f"{tokens} generated after each"
    )
    print("  " + ", ".join(f"{len(group)} {kind}" for kind, group in kinds.items()))
    print(f"  emulated: {', '.join(ARCHITECTURES)}")
    print(
        "profile  cache  identical  parts at  same logits    apart  narrow of decisions   "
        "as fp32  cache/prompt  beside fp32"
    )
    plain: Outcome | None = None
    for profile, cache in rows:
        outcome = measure(model, profile, cache, prompts, tokens)
        plain = plain or outcome
        print(line(profile, cache, outcome, plain), flush=True)


def line(profile: str, cache: str, outcome: Outcome, plain: Outcome) -> str:
    """Format one row of the table that the module's docstring describes."""
    parts, spread = parting(outcome.texts), outcome.spread
    length = next(iter(outcome.texts.values())).shape[1]
    apart = parts[parts < length] - PROMPT_BYTES
    first = f"byte {apart.mean():.1f}" if len(apart) else "-"
    same = [(text == plain.texts[arch]).all(axis=1) for arch, text in outcome.texts.items()]
    note = f"   no {', '.join(outcome.lacking)}: no such instruction" if outcome.lacking else ""
    return (
        f"{profile:8s} {cache:5s} {100 * (parts == length).mean():8.1f} % {first:>9s} "
        f"{100 * spread.same:10.1f} % {spread.largest:8.1e} {spread.narrow:7d} of "
        f"{spread.decisions:9,d} {100 * np.mean(same):8.1f} % {outcome.cache:10,d} B "
        f"{outcome.seconds / plain.seconds:10.2f} x{note}"
    )


def parting(texts: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.int64]:
    """Return each prompt's first position that differs anywhere, or the text's length: [B]."""
    stack = np.stack(list(texts.values()))
    differs = (stack != stack[0]).any(axis=0)
    first: NDArray[np.int64] = differs.argmax(axis=1)
    return np.where(differs.any(axis=1), first, differs.shape[1])


def spread_of(logits: list[NDArray[np.float32]], parts: NDArray[np.int64]) -> Spread:
    """Compare logits [steps, B, V] of several architectures wherever they saw the same text."""
    steps = np.arange(len(logits[0]))
    seen = steps[:, None] < parts[None, :]
    stack = np.stack([array[seen] for array in logits])
    bits = stack.view(np.uint32)
    apart = (stack.max(axis=0) - stack.min(axis=0)).max(axis=1)
    best = np.partition(stack[0], -2, axis=1)
    decided = (steps >= PROMPT_BYTES - 1)[:, None] & seen
    lead = (best[:, -1] - best[:, -2])[decided[seen]]
    return Spread(
        same=float((bits == bits[0]).all(axis=0).mean()),
        largest=float(apart.max()),
        narrow=int(((lead <= apart[decided[seen]]) & (apart[decided[seen]] > 0)).sum()),
        decisions=len(lead),
    )


def measure(
    model: TrainedModel, profile: str, cache: Cache, prompts: list[bytes], tokens: int
) -> Outcome:
    """Decode all prompts at once on each architecture that has the instruction."""
    texts: dict[str, NDArray[np.uint8]] = {}
    logits: list[NDArray[np.float32]] = []
    lacking: list[str] = []
    seconds, held = 0.0, 0
    for arch in ARCHITECTURES:
        config = configure(model, profile, cache, arch, len(prompts), tokens)
        held = cache_bytes(config) // len(prompts)
        keeper = LogitKeeper(config)
        started = time.perf_counter()
        try:
            texts[arch] = decode(config, model.parameters, prompts, sink=keeper)
        except UnsupportedError:
            lacking.append(arch)
            continue
        seconds += time.perf_counter() - started
        logits.append(np.stack(keeper.rows))
    return Outcome(
        texts=texts,
        spread=spread_of(logits, parting(texts)),
        lacking=tuple(lacking),
        seconds=seconds / len(texts),
        cache=held,
    )


class LogitKeeper:
    """A sink that keeps each step's logits, f32 [B, V]."""

    def __init__(self, config: GenerationConfig) -> None:
        gemms = [n for n in derive_decode_graph(config).nodes if n.op == "bitwitness::gemm"]
        self._last = gemms[-1].outputs[0]
        self.rows: list[NDArray[np.float32]] = []

    def __call__(self, value: Value, tensor: Tensor) -> Tensor:
        """Keep the last GEMM's product."""
        if value.id == self._last:
            self.rows.append(tensor.numpy())
        return tensor


def configure(
    model: TrainedModel, profile: str, cache: Cache, arch: str, batch: int, tokens: int
) -> GenerationConfig:
    """Return the configuration of one decoding."""
    return GenerationConfig.from_document(
        {
            "run": model.run_id,
            "commitment": model.commitment,
            "numerics": {"arch": arch, "profile": profile},
            "model": model.config.model,
            "cache": cache,
            "batch": batch,
            "prompt": PROMPT_BYTES,
            "tokens": tokens,
        }
    )


def prompts_of(size: int, count: int) -> dict[str, list[bytes]]:
    """Take prompts from the middles of files, of each kind as many as there are; by path.

    What a kind lacks is made up with Python sources.
    """
    share = count // len(KINDS)
    found = {kind: list(islice(_texts(kind), share)) for kind in KINDS}
    missing = count - sum(map(len, found.values()))
    if missing:
        found["python"] = list(islice(_texts("python"), share + missing))
    middles = {
        kind: [text[len(text) // 2 :][:size] for text in texts] for kind, texts in found.items()
    }
    return {kind: texts for kind, texts in middles.items() if texts}


def _texts(kind: str) -> Iterator[bytes]:
    """Yield texts of a kind, spread over the folders that hold them."""
    for root, pattern in KINDS[kind]:
        paths = sorted(path for path in root.rglob(pattern) if path.is_file())
        # Neighbours by path are alike, so a large folder is read in strides.
        stride = max(1, len(paths) // PROMPTS)
        for path in (p for first in range(stride) for p in paths[first::stride]):
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            if len(text) >= _SMALLEST_FILE and b"\0" not in text:
                yield text


def processor() -> str:
    """Return the processor's name as Linux knows it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


if __name__ == "__main__":
    main()
