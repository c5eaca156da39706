"""A training loop: weights changed in place, samples shuffled by the session's random state."""

from __future__ import annotations

import random
from typing import Any

import numpy

from graflow_ckpt import task, workflow
from tests.acceptance.programs.journalist import begins, ended, final_state

COMMITS_AT_ONCE = True
FOLLOWS: dict[str, set[str]] = {"evaluate": {"epoch"}}


def main(durability: Any) -> dict[str, Any]:
    random.seed(7)
    numpy.random.seed(7)
    samples = [(numpy.arange(4) * k % 5 / 5.0, k % 2) for k in range(12)]
    with workflow("training", session_id="training", durability=durability, observers=(ended,)) as flow:

        @task(inject_context=True)
        def epoch(context: Any) -> int:
            begins(context)
            channel = context.get_channel()
            weights = channel.get("weights")
            if weights is None:
                weights = numpy.random.standard_normal(4)
                channel.set("weights", weights)
            order = list(range(len(samples)))
            random.shuffle(order)
            for at in order:
                x, y = samples[at]
                weights += 0.1 * (y - 1.0 / (1.0 + numpy.exp(-(weights @ x)))) * x
            channel.append("losses", float(numpy.random.random()) + float(weights.sum()))
            if context.cycle % 2:
                context.checkpoint(metadata={"epoch": context.cycle})
            if context.cycle < 6:
                context.next_iteration()
            return int(context.cycle)

        @task(inject_context=True)
        def evaluate(context: Any, epoch: int) -> float:
            begins(context)
            weights = context.get_channel().get("weights", readonly=True)
            return float(weights @ weights) + epoch

        epoch >> evaluate
        flow.execute("epoch")
    return final_state(flow)
