"""Every public name that a pickle of an older version may refer to is found where it is now.

A line of names-1.txt is a module and a name, of commit 9023819: what `graflow_ckpt` exported, each public
class and function of the modules that users import from, and all that the golden sessions refer to.
"""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path

import pytest

from graflow_ckpt import KeepLast, _restore
from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError

FILE = Path(__file__).parent / "names-1.txt"
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
