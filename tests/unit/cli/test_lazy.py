"""What commands load when they run is found, and is what a type checker believes it to be."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from graflow_ckpt.cli import lazy


@pytest.mark.parametrize("name", lazy.PLACES)
def test_a_name_is_its_module(name: str) -> None:
    assert getattr(lazy, name) is import_module(f"graflow_ckpt.{lazy.PLACES[name]}")


def test_a_type_checker_sees_the_same_table() -> None:
    nodes = ast.walk(ast.parse(Path(lazy.__file__).read_text(encoding="utf-8")))
    found = {
        alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("graflow_ckpt.")
        for node in nodes
        if isinstance(node, ast.ImportFrom) and f"{node.module}".partition(".")[0] == "graflow_ckpt"
        for alias in node.names
    }

    assert found == lazy.PLACES


def test_another_name_is_none_of_it() -> None:
    with pytest.raises(AttributeError, match="stranger"):
        _ = lazy.stranger  # type: ignore[attr-defined]
