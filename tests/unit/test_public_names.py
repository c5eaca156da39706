"""The names of the package: all of them load, without anything that is optional."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import graflow_ckpt
from graflow_ckpt.frontends.expressions import fleet

ROOT = Path(__file__).parents[2]
OPTIONAL = ("redis", "rq", "pydantic")


def imported_in(file: Path) -> set[str]:
    """The names that a file imports from the package, or that the package imports for type checkers."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    of_package = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        alias.name
        for node in of_package
        if (node.module or "").partition(".")[0] == "graflow_ckpt"
        and (file.name == "__init__.py" or node.module == "graflow_ckpt")
        for alias in node.names
    }


def without(packages: Sequence[str], program: str) -> subprocess.CompletedProcess[str]:
    missing = f"import sys\nfor name in {tuple(packages)}: sys.modules[name] = None\n"
    command = [sys.executable, "-c", missing + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_names_are_sorted_and_each_has_its_home() -> None:
    names = graflow_ckpt.__all__

    assert names == sorted(names)
    assert set(names) - {"__version__"} == set(graflow_ckpt._HOMES)
    for name, home in graflow_ckpt._HOMES.items():
        assert getattr(graflow_ckpt, name) is getattr(importlib.import_module(f"graflow_ckpt.{home}"), name)


def test_type_checkers_see_the_same_names_and_their_types_are_pinned() -> None:
    names = set(graflow_ckpt.__all__) - {"__version__"}

    assert imported_in(ROOT / "graflow_ckpt/__init__.py") == names
    assert names <= imported_in(ROOT / "tests/typing/api.py")


def test_all_names_load_where_nothing_optional_is_installed() -> None:
    done = without(OPTIONAL, "from graflow_ckpt import *; print(connect, task)")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["redis", "rq"])
def test_connecting_names_what_to_install(package: str) -> None:
    done = without([package], "import graflow_ckpt; graflow_ckpt.connect('redis://localhost')")

    last = done.stderr.splitlines()[-1]
    assert "PackageMissing" in last
    assert package in last
    assert "pip install 'graflow-ckpt[fleet]'" in last


LOCAL = (
    "live", "care.clearance", "inspect.comparison", "inspect.examination", "locate", "run.continuation",
    "care.journey", "care.keyring", "run.launch", "run.dry_run", "inspect.display",
)  # fmt: skip
"""Modules that commands about a store load when they do something."""


@pytest.mark.parametrize("module", LOCAL)
def test_commands_about_a_store_need_nothing_optional(module: str) -> None:
    done = without(OPTIONAL, f"import graflow_ckpt.cli.{module}")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["status", "wait", "failed requeue"])
def test_a_command_about_a_fleet_names_what_to_install(command: str) -> None:
    given = [*command.split(), "night", "--url", "redis://localhost:1/0"]
    done = without(["redis", "rq"], f"from graflow_ckpt.cli import main; exit(main({given!r}))")

    assert done.returncode == 1
    assert "pip install 'graflow-ckpt[fleet]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_import_that_fails_is_not_taken_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "graflow_ckpt.fleet.client", raising=False)
    monkeypatch.setitem(sys.modules, "blake3", None)

    with pytest.raises(ModuleNotFoundError, match="blake3"):
        fleet()


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flow'"):
        _ = graflow_ckpt.Flow  # type: ignore[attr-defined]


def test_a_shell_completes_names_that_were_not_used_yet() -> None:
    command = "import graflow_ckpt; assert {*graflow_ckpt.__all__, '__file__'} <= {*dir(graflow_ckpt)}"

    subprocess.run([sys.executable, "-c", command], check=True)
