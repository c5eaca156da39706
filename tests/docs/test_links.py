"""Links in README.md and docs/ lead somewhere: to a file of the project, and to a heading that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings as a forge makes links of them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = page.parent / link["path"] if link["path"] else page
        if not target.exists() or (link["heading"] and link["heading"] not in anchors(target)):
            found.append(link[0])
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `thing`: two\n[a](page.md#one-thing-two) [b](gone.md) [c](#three)\n", encoding="utf-8"
    )

    assert broken(page) == ["](gone.md)", "](#three)"]


def test_each_promise_names_the_tests_that_guard_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (P\d) \|.*\|(.*)\|$", readme, re.MULTILINE)

    assert [name for name, _ in rows] == [f"P{n}" for n in range(1, 10)]
    assert all(LINK.search(guards) for _, guards in rows)
