"""A training loop as people write it, that a kill meets anywhere: a momentum, noise drawn above the loop.

python -m tests.crash.training SESSION HOW [PORT]     how: auto, journal, thread, process, async, redis
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import redis

from graflow_ckpt import TaskExecutionContext, Workflow, task, workflow
from tests.acceptance.places import in_redis

EPOCHS = 30


class Model:
    def __init__(self) -> None:
        self.weights = np.random.standard_normal(8)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights[:] = state["weights"]


class SGD:
    """With a momentum; it has the weights of the model."""

    def __init__(self, model: Model) -> None:
        self.weights, self.speed = model.weights, np.zeros(8)

    def step(self, gradient: Any) -> None:
        self.speed *= 0.9
        self.speed += gradient
        self.weights -= 0.1 * self.speed

    def state_dict(self) -> dict[str, Any]:
        return {"speed": self.speed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.speed[:] = state["speed"]


class Training:
    """What the bodies have in common."""

    def __init__(self) -> None:
        if HOW == "process":  # which begins with generators of its own
            seed()
        self.noise = np.random.standard_normal(8)
        self.model = Model()
        self.optimizer = SGD(self.model)
        self.losses: list[float] = []
        self.state = {"model": self.model, "optimizer": self.optimizer, "losses": self.losses}

    def epoch(self, number: int) -> Iterator[float]:
        """Yield a moment to wait for, within the work and after it."""
        for at in random.sample(range(16), 16):
            self.optimizer.step(self.noise * at / 16 + random.random())
            if at == 7:
                yield 0.005
        self.losses.append(float(self.model.weights.sum()))
        yield 0.005
        print("epoch", number, flush=True)

    def result(self) -> str:
        return blake2b(self.model.weights.tobytes() + repr(self.losses).encode(), digest_size=8).hexdigest()


def train(context: TaskExecutionContext) -> str:
    training = Training()
    for number in context.rounds(range(EPOCHS), state=training.state):
        for moment in training.epoch(number):
            time.sleep(moment)
    return training.result()


async def train_async(context: TaskExecutionContext) -> str:
    training = Training()
    async for number in context.rounds(range(EPOCHS), state=training.state):
        for moment in training.epoch(number):
            await asyncio.sleep(moment)
    return training.result()


def seed() -> None:
    random.seed(7)
    np.random.seed(7)


def flow(session: str, port: int) -> Workflow:
    make = in_redis(redis.Redis(port=port)) if HOW == "redis" else workflow
    options: dict[str, Any] = {"timeout": 600} if HOW == "thread" else {}
    options |= {"isolation": "process"} if HOW == "process" else {}
    body = task(id="train", inject_context=True, **options)(train_async if HOW == "async" else train)
    return make("train", session, **({"durability": "journal"} if HOW == "journal" else {})).add(body)


HOW = sys.argv[2] if len(sys.argv) > 2 else "auto"

if __name__ == "__main__":
    seed()
    print("result", flow(sys.argv[1], int(sys.argv[3])).execute(), flush=True)
