"""What tests look up by its name in a module."""

from __future__ import annotations

from graflow_ckpt import task


def helper(n: int) -> int:
    return 2 * n


@task
def step(n: int = 1) -> int:
    return helper(n)


class Caller:
    """Its instances can be called."""

    def __call__(self) -> int:
        return self.call()

    def call(self) -> int:
        return helper(2)
