"""`make bench`: all benchmarks, in one run on one machine."""

from __future__ import annotations

import platform

from benchmarks import emulator, exact, hashing, honesty, step


def main() -> None:
    """Say what the machine is, then run each benchmark."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    for benchmark in (emulator, exact, hashing, honesty, step):
        benchmark.main()
        print()


if __name__ == "__main__":
    main()
