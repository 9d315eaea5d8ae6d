"""What an audit costs, counted from the step graph before any of the prover's data is read.

The unit is one multiply-accumulate of a matrix product as the model asks for it; a profile may
spend several tensor-core products on each.
"""

from __future__ import annotations

from math import prod

from trainer.graph import PRODUCTS, Node, StepGraph
from verifier.errors import BudgetError


def node_macs(node: Node, graph: StepGraph) -> int:
    """Return the multiply-accumulates of one operator; 0 for anything but a matrix product."""
    if node.op not in PRODUCTS:
        return 0
    left = next(node.refs())
    return prod(graph.values[node.outputs[0]].shape) * left.shape[-1]


def step_macs(graph: StepGraph) -> int:
    """Return the multiply-accumulates of one step on one rank."""
    return sum(node_macs(node, graph) for node in graph.nodes)


def check_budget(*, macs_per_step: int, steps: int, budget: int | None) -> None:
    """Refuse an audit that would cost more than the auditor allows.

    Args:
        macs_per_step: of all ranks together.
        steps: how many will be replayed.
        budget: in multiply-accumulates; None for no limit.

    Raises:
        BudgetError: the message has both figures and what would fit.

    """
    total = macs_per_step * steps
    if budget is not None and total > budget:
        raise BudgetError(
            f"replaying {steps} steps takes {total:.3e} multiply-accumulates, the budget is "
            f"{budget:.3e}: it allows {budget // max(macs_per_step, 1)} steps"
        )
