"""The page of the architecture says what is: chains, layers and versions are followed in the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from graflow_ckpt.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graflow_ckpt"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
MOST, MOST_OF_A_TRIO = 5, 7
Function = ast.FunctionDef | ast.AsyncFunctionDef
STEP = re.compile(r"`(?:(?P<file>[\w/]+\.py):)?(?P<name>\w+(?:\.\w+)*)`")


class Step(NamedTuple):
    """A function of a chain; its file is below the package."""

    file: str
    name: str

    @property
    def called(self) -> str:
        """What another one calls it: a class by its own name."""
        return self.name.removesuffix(".__init__").rpartition(".")[2]


def rows(heading: str, page: str = PAGE) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    below = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def chain(cell: str) -> list[Step]:
    """The steps of a row. One without a file is in that of the step before."""
    steps: list[Step] = []
    for text in cell.split("→"):
        found = STEP.fullmatch(text.strip())
        assert found is not None, f"{text.strip()!r} is no step of a chain"
        steps.append(Step(found["file"] or steps[-1].file, found["name"]))
    return steps


@cache
def functions(file: str) -> dict[str, Function]:
    """Those of a file, by qualified name."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                yield from within(child, f"{prefix}{child.name}.")
            if isinstance(child, Function):
                yield f"{prefix}{child.name}", child

    return dict(within(ast.parse((PACKAGE / file).read_text(encoding="utf-8")), ""))


def calls(function: Function) -> set[str]:
    """The names that it calls, or passes on to be called."""
    found = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
    used = [node for call in found for node in (call.func, *call.args, *(w.value for w in call.keywords))]
    names = {node.attr for node in used if isinstance(node, ast.Attribute)}
    return names | {node.id for node in used if isinstance(node, ast.Name)}


def broken(steps: list[Step]) -> list[str]:
    """What is not so in a chain."""
    lost = [f"{step.file} has no {step.name}" for step in steps if step.name not in functions(step.file)]
    return lost or [
        f"{one.name} of {one.file} does not call {other.called}"
        for one, other in pairwise(steps)
        if other.called not in calls(functions(one.file)[one.name])
    ]


WHERE = {where: chain(cell) for where, cell in rows("Where is …")}
TYPED = {where.strip("`"): chain(cell) for where, cell in rows("Where a command goes")}


@pytest.mark.parametrize("where", [*WHERE, *TYPED])
def test_each_function_of_a_chain_exists_and_calls_the_next(where: str) -> None:
    steps = (WHERE | TYPED)[where]

    assert broken(steps) == []
    for step in steps:
        found: object = import_module(f"graflow_ckpt.{step.file.removesuffix('.py').replace('/', '.')}")
        for name in step.name.split("."):
            found = getattr(found, name)


@pytest.mark.parametrize("where", [*WHERE, *TYPED])
def test_a_chain_is_short(where: str) -> None:
    most = MOST_OF_A_TRIO if "trio" in where else MOST

    assert len({step.file for step in (WHERE | TYPED)[where]}) <= most


def test_each_command_is_in_the_table() -> None:
    assert {name.partition(" ")[0] for name in TYPED} == set(COMMANDS)


def test_a_chain_that_is_broken_is_seen() -> None:
    whole = chain("`engine/run.py:Run.drive` → `Run._step`")
    apart = chain("`engine/run.py:Run._step` → `Run.drive`")
    gone = chain("`engine/run.py:Run.drive` → `Run.is_gone`")

    assert broken(whole) == []
    assert broken(apart) == ["Run._step of engine/run.py does not call drive"]
    assert broken(gone) == ["engine/run.py has no Run.is_gone"]


def layers() -> dict[str, set[str]]:
    """The folders of the package and what each may import, by the contract."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [one for one in tool["contracts"] if one["id"] == "layers"]
    lines = [re.findall(r"\w+", line) for line in contract["layers"]]
    below = [{name for line in lines[at + 1 :] for name in line} for at in range(len(lines))]
    return {name: low for line, low in zip(lines, below, strict=True) for name in line}


def test_the_layers_are_those_of_the_contract() -> None:
    table = rows("The layers")
    said = {folder.strip("`"): set(re.findall(r"\w+", below)) - {"nothing"} for folder, below, _ in table}

    assert said == layers()
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"testing"} == set(said)


@pytest.mark.parametrize(("version", "constant"), [row[1:3] for row in rows("Versions of formats")])
def test_a_version_is_that_of_the_code(version: str, constant: str) -> None:
    file, _, name = constant.strip("`").partition(":")
    module = import_module(f"graflow_ckpt.{file.removesuffix('.py').replace('/', '.')}")

    assert str(getattr(module, name)) == version


def test_each_picture_is_there() -> None:
    assert len(re.findall(r"^```mermaid$", PAGE, re.MULTILINE)) == 5
