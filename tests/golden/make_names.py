"""Writes names-N.txt, once: what pickles of a released version may refer to by name.

    PYTHONPATH=CHECKOUT python -m tests.golden.make_names

A line is a module and a name in it: what `graflow_ckpt` and `graflow_ckpt.testing` export, every public
class and function of the modules that users import from, and all that the golden sessions refer to.
names-1.txt is of commit 9023819.
"""

from __future__ import annotations

import inspect
import pickletools
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import graflow_ckpt
from graflow_ckpt import testing

HERE = Path(__file__).parent
FILE = HERE / "names-1.txt"
MODULES = (
    "_restore", "checkpoint.keys", "checkpoint.manager", "checkpoint.model", "checkpoint.retention",
    "core.conditions", "core.errors", "core.events", "core.facts", "core.graph", "core.policy",
    "core.protocols", "core.task", "core.values", "engine.context", "engine.engine", "engine.settings",
    "engine.task_context",
    "fleet.client", "fleet.handle", "frontends.door", "frontends.dsl", "frontends.expressions",
    "interfaces.observers.opentelemetry", "interfaces.observers.prometheus", "sessions.views", "stores",
    "stores.encrypted", "stores.keys", "stores.local", "stores.memory", "stores.sqlite",
)  # fmt: skip


def public() -> Iterator[tuple[str, str]]:
    for name in graflow_ckpt.__all__:
        yield of(getattr(graflow_ckpt, name))
    for name in testing.__all__:
        yield of(getattr(testing, name))
    for module in MODULES:
        found = import_module(f"graflow_ckpt.{module}")
        for name, value in vars(found).items():
            public = not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
            if public and value.__module__ == found.__name__:
                yield of(value)


# Any object: what has no name of its own is a constant.
def of(value: object) -> tuple[str, str]:
    return str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))


def stored() -> Iterator[tuple[str, str]]:
    """Of the golden sessions; a copy of code is a pickle within a pickle."""
    for path in HERE.glob("sessions-*/*/*/**/*.pkl"):
        waiting = [path.read_bytes()]
        while waiting:
            texts: list[str] = []
            for _, argument, _ in pickletools.genops(waiting.pop()):
                if isinstance(argument, str):
                    texts.append(argument)
                elif isinstance(argument, bytes) and argument[:2] == b"\x80\x05":
                    waiting.append(argument)
            yield from ((m, n) for m, n in pairwise(texts) if is_name(m, n))


def is_name(module: str, name: str) -> bool:
    if not module.startswith("graflow_ckpt.") or not name.replace(".", "").isidentifier():
        return False
    try:
        found = import_module(module)
    except ImportError:
        return False
    return hasattr(found, name.partition(".")[0])


def main() -> None:
    found = {(module, name) for module, name in (*public(), *stored()) if module.startswith("graflow_ckpt")}
    FILE.write_text("".join(f"{module} {name}\n" for module, name in sorted(found) if name))


if __name__ == "__main__":
    main()
