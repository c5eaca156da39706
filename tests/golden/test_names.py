"""Every public name that a pickle of an older version may refer to is found where it is now.

    PYTHONPATH=CHECKOUT python -m tests.golden.test_names        writes names-N.txt, once

A line of it is a module and a name in it: what `graflow_ckpt` exports, every public class and function of
the modules that users import from, and all that the golden sessions refer to.
names-1.txt is of commit 9023819.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import pickletools
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

import graflow_ckpt
from graflow_ckpt import KeepLast, _restore
from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError

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


NAMES = [tuple(line.split(" ")) for line in FILE.read_text().splitlines()]


def find(module: str, name: str) -> object:
    return _restore.Unpickler(io.BytesIO()).find_class(module, name)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda text: text.removeprefix("graflow_ckpt."))
def test_a_released_name_is_found_or_was_removed_on_purpose(module: str, name: str) -> None:
    if f"{module}:{name}" in _restore.GONE:
        with pytest.raises(AttributeError, match="was removed: "):
            find(module, name)
        return
    try:
        found = find(module, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(
            f"{error}. A name that has moved stands in _restore.MOVED, a removed one in _restore.GONE."
        )
    assert getattr(found, "__module__", "").startswith("graflow_ckpt")


def test_what_has_moved_is_a_released_name_and_its_old_place_is_gone() -> None:
    released = {f"{module}:{name}" for module, name in NAMES} | {module for module, _ in NAMES}

    for old in (*_restore.MOVED, *_restore.GONE):
        module, _, name = old.partition(":")
        try:
            found = importlib.import_module(module)
        except ImportError:
            found = None
        assert old in released
        assert found is None or (name and not hasattr(found, name)), f"{old} is still there"


def test_a_value_is_loaded_whose_class_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = live_bytes(KeepLast(3)).replace(b"checkpoint.retention", b"checkpoint.attention")
    monkeypatch.setitem(_restore.MOVED, "graflow_ckpt.checkpoint.attention", KeepLast.__module__)

    assert load_live(stored) == KeepLast(3)


def test_a_value_is_loaded_whose_class_has_another_name_now(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = live_bytes(KeepLast(3)).replace(b"KeepLast", b"KeepMost")
    place = f"{KeepLast.__module__}:KeepMost"
    monkeypatch.setitem(_restore.MOVED, place, f"{KeepLast.__module__}:KeepLast")

    assert load_live(stored) == KeepLast(3)


def test_a_module_that_code_uses_is_found_where_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    import graflow_ckpt.checkpoint.retention as retention

    stored = live_bytes(lambda: retention.KeepLast(3)).replace(
        b"checkpoint.retention", b"checkpoint.attention"
    )
    monkeypatch.setitem(_restore.MOVED, "graflow_ckpt.checkpoint.attention", retention.__name__)

    assert load_live(stored)() == KeepLast(3)


def test_a_removed_name_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = live_bytes(KeepLast(3)).replace(b"KeepLast", b"KeepMost")
    monkeypatch.setitem(_restore.GONE, f"{KeepLast.__module__}:KeepMost", "use KeepLast")

    with pytest.raises(CheckpointError, match="KeepMost was removed: use KeepLast"):
        load_live(stored)


def test_code_of_another_python_is_refused_before_it_ends_the_process() -> None:
    stored = live_bytes(lambda: 1)

    assert load_live(stored)() == 1
    with pytest.raises(CheckpointError, match=r"Code that Python 3\.7 has stored") as refused:
        load_live(stored, "3.7.1")
    assert "Continue with the program" in refused.value.hint


def test_a_value_without_code_is_loaded_whatever_python_stored_it() -> None:
    assert load_live(pickle.dumps(KeepLast(3)), "3.7.1") == KeepLast(3)


if __name__ == "__main__":
    main()
