"""The pages for those who work on the package name what is there: words, folders, files, no other page."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from graflow_ckpt.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MOST_WORDS, TWO_LINES = 40, 200
TEXTS = [
    ROOT / "Makefile",
    *sorted(ROOT.glob("*.md")),
    *(
        path
        for folder in ("graflow_ckpt", "tests", "benchmarks", "docs", "examples", "workers")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".lua", ".sql", ".toml"} and path.is_file()
    ),
]
OUTSIDE = re.compile(r"\b(?:ARCHITECTURE|CHECKLIST|HOUSE|STYLE)(?:\.md)?\b(?!\s*=)|\bruling \d|\.\./shared")
PAGE = re.compile(r"(?<![\w*/.-])[\w./-]*\w\.md\b")


def is_there(name: str, beside: Path) -> bool:
    return any((folder / name).exists() for folder in (ROOT, ROOT / "docs", beside))


def outside(text: str, beside: Path) -> list[str]:
    """The documents that a text names and that are not here. Tests make pages of their own."""
    found = OUTSIDE.findall(text)
    if ROOT / "tests" in beside.parents:
        return found
    return found + [name for name in PAGE.findall(text) if not is_there(name.lstrip("/"), beside)]


def test_the_glossary_is_short_and_sorted() -> None:
    words = re.findall(r"^\| (.+?) \| (.+) \|$", GLOSSARY, re.MULTILINE)[1:]

    assert len(words) <= MOST_WORDS
    assert [word for word, _ in words] == sorted({word for word, _ in words})
    assert [word for word, meaning in words if len(meaning) > TWO_LINES] == []


def test_the_guard_of_each_folder_is_named() -> None:
    below = CONTRIBUTING.partition("\n## Which tests guard which folder\n")[2].partition("\n## ")[0]
    guarded = set(re.findall(r"^\| `([\w/]+)` \|", below, re.MULTILINE))

    assert guarded == {f"graflow_ckpt/{path.parent.name}" for path in ROOT.glob("graflow_ckpt/*/__init__.py")}
    kinds = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"__pycache__", "unit"}
    assert {f"tests/{kind}" for kind in kinds} <= set(re.findall(r"`(tests/\w+)`", below))


def test_each_place_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:graflow_ckpt|tests)/[\w/.]+)`", CONTRIBUTING)

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_to_add_something_touches_three_places() -> None:
    below = CONTRIBUTING.partition("\n## Add something\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in below.splitlines() if line.startswith("| a")][1:]

    assert [re.sub(r" \(.*", "", row[0].strip()) for row in rows] == [
        "a driver",
        "a policy",
        "an observer",
        "a command",
        "an option of `run`",
        "another text for an error",
    ]
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)


@pytest.mark.parametrize("text", ["as ARCHITECTURE 5 says", "see gone.md", "by ruling 7", "../shared/x"])
def test_a_document_that_is_not_here_is_found(text: str, tmp_path: Path) -> None:
    assert len(outside(text, tmp_path)) == 1
    assert outside("see README.md, docs/fleet.md and fleet.md", tmp_path) == []


def test_no_text_points_to_a_document_outside() -> None:
    named = {
        str(path.relative_to(ROOT)): found
        for path in TEXTS
        if path.parent != Path(__file__).parent
        and (found := outside(path.read_text(encoding="utf-8"), path.parent))
    }

    assert named == {}


@pytest.mark.parametrize("command", ["run", "resume"])
def test_the_page_of_the_command_line_names_each_option(command: str) -> None:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    module = import_module(f"graflow_ckpt.cli.{COMMANDS[command][0]}.{command}")

    options = [found.opts[-1] for found in module.command.params if isinstance(found, click.Option)]

    assert [option for option in options if option not in page] == []
