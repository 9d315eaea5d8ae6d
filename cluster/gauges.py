"""The run's numbers at Ray's Prometheus endpoint: loss, step, seconds per step, faults."""

from __future__ import annotations

from typing import Any


class StepGauges:
    """Gauges of one run, tagged with its name. Ray adds the prefix `ray_`."""

    def __init__(self, run: str) -> None:
        self._loss = _gauge("bitwitness_loss", "Mean loss of the last committed step.", run)
        self._step = _gauge("bitwitness_step", "The last committed step.", run)
        self._seconds = _gauge(
            "bitwitness_step_seconds", "Seconds the slowest rank computed on that step.", run
        )
        self._faults = _gauge(
            "bitwitness_faults", "Steps that a re-check found wrong, executed again since.", run
        )

    def show(self, step: int, loss: float, seconds: float, faults: int = 0) -> None:
        """Set all gauges."""
        self._step.set(step)
        self._loss.set(loss)
        self._seconds.set(seconds)
        self._faults.set(faults)


def _gauge(name: str, description: str, run: str) -> Any:
    # Not at the top: nothing of ours imports Ray before a session has set its environment.
    from ray.util.metrics import Gauge

    gauge = Gauge(name, description=description, tag_keys=("run",))
    gauge.set_default_tags({"run": run})
    return gauge
