"""Root of an arena on the device beside a device-to-device copy of it."""

from __future__ import annotations

import torch

from benchmarks.gpu.timing import Report
from trainer.kernels import Runtime
from trainer.kernels.leaves import LeafHasher
from transcript.layout import Layout

SHAPE = (256, 1024, 1024)  # 1 GiB of f32, in 16 KiB leaves


def main(rt: Runtime, report: Report) -> None:
    """Print GB/s of packing, of the root and of a copy (bytes read, not read and written)."""
    layout = Layout.build([("tensor", "f32", SHAPE)])
    hasher = LeafHasher(rt, layout)
    buffer, tensor = hasher.new_buffer(), torch.randn(SHAPE, device=rt.torch_device)
    other = torch.empty_like(buffer)
    rows = {
        "copy on the device": lambda: other.copy_(buffer),
        "packing into leaf order": lambda: hasher.pack_into(buffer, "tensor", tensor),
        "leaf hashes": lambda: hasher.leaf_hashes(buffer),
        "root, with its return to the host": lambda: hasher.root(buffer),
    }
    report.say(f"hashing {layout.bytes >> 20} MiB in {layout.leaf_count} leaves")
    for name, run in rows.items():
        time = report.time(name, run)
        if time is not None:
            report.say(f"  {name:36} {layout.bytes * 1e-6 / time:8.1f} GB/s")
