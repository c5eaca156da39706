"""Each rule of tests/house.py convicts a small example, lets a sound one pass, and holds for the package.

Rules that the package has not reached have a ceiling: what breaks them may only become less.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house
from tests.house import NAME, RULES, House, rows

Files = dict[str, str]

BLOCK = "".join(f"value_{n} = {n}\n" for n in range(8))
LONG = repr("x" * 60)
TALL = "def f():\n" + "    pass\n" * 50

CEILINGS = {
    house.touched: 55,
}
"""Rules that the package breaks more often than it may in the end, and how often: lower it with each fix."""

BROKEN: list[tuple[Callable[[House], list[str]], Files, list[str]]] = [
    (house.folders, {f"core/m{n}.py": "" for n in range(21)}, ["core has 21"]),
    (
        house.slivers,
        {"core/a.py": "def f():\n    from graflow_ckpt.core import b\n", "core/b.py": "x = 1\n"},
        ["core/b.py is for core/a.py: 1 lines"],
    ),
    (house.prefixes, {f"core/far_{n}.py": "" for n in "abc"}, ["core/far_: far_a, far_b, far_c"]),
    (
        house.classes_twice,
        {"core/a.py": "class Twice: ...\n", "engine/b.py": "\nclass Twice: ...\n"},
        ["'Twice': core/a.py:1, engine/b.py:2"],
    ),
    (
        house.cycles,
        {
            "core/a.py": "from graflow_ckpt.core import b\n",
            "core/b.py": "from graflow_ckpt.core.c import d\n",
            "core/c.py": "import graflow_ckpt.core.a\n",
        },
        ["core.a, core.b, core.c"],
    ),
    (
        house.cycles_later,
        {
            "core/a.py": "from graflow_ckpt.core import b\n",
            "core/b.py": "class C:\n    def f(self):\n        from graflow_ckpt.core.a import x\n",
        },
        ["core.a, core.b"],
    ),
    (
        house.imports_in_functions,
        {
            "core/a.py": "def f():\n    import os\n    from graflow_ckpt.core import b, c\n",
            "core/b.py": "",
            "core/c.py": "",
        },
        ["core/a.py:3 core.b", "core/a.py:3 core.c"],
    ),
    (
        house.assignments,
        {"engine/a.py": "def f(self, x):\n    x.y = 1\n    self.x.y += 1\n    x.a, x.b = 1, 2\n"},
        ["engine/a.py:2 x.y", "engine/a.py:3 self.x.y", "engine/a.py:4 x.a", "engine/a.py:4 x.b"],
    ),
    (house.long_files, {"core/a.py": "\n" * 601}, ["core/a.py has 601"]),
    (house.long_functions, {"core/a.py": TALL}, ["core/a.py:1 f has 51"]),
    (
        house.large_classes,
        {
            "core/a.py": "class A:\n" + "".join(f"    def f{n}(self): self.a = 1\n" for n in range(21)),
            "core/b.py": "class B:\n    x: int\n    def f(self):\n"
            + "".join(f"        self.a{n} = {n}\n" for n in range(15)),
        },
        ["core/a.py:1 A: 1 attributes, 21 methods", "core/b.py:1 B: 16 attributes, 1 methods"],
    ),
    (
        house.runs,
        {
            "core/a.py": f"first = 1\n{BLOCK}same = 2\n",
            "core/b.py": f"\n# said\n\n{BLOCK}same = 2\nlast = 3\n",
        },
        ["core/b.py:4 as core/a.py:2: 9 lines"],
    ),
    (
        house.literals,
        {"core/a.py": f"a = {LONG}\nb = f({LONG})\n"},
        [f"{'x' * 40!r}: core/a.py:1, core/a.py:2"],
    ),
    (
        house.names_in_prose,
        {"core/a.py": '"""See gone.py."""\n# and core/b.py, stores/a.py\n', "../docs/p.md": "`lost.py`\n"},
        [
            "docs/p.md names lost.py",
            "core/a.py:1 names gone.py",
            "core/a.py:2 names core/b.py",
            "core/a.py:2 names stores/a.py",
        ],
    ),
    (
        house.untested,
        {
            "core/a.py": "",
            "core/b.py": "",
            "core/c.py": "",
            "stores/b.py": "",
            "../tests/unit/core/test_all.py": "from graflow_ckpt.core import a, b\n",
            "../tests/unit/core/test_c.py": "",
        },
        ["stores/b.py"],
    ),
]

SOUND: list[tuple[Callable[[House], list[str]], Files]] = [
    (house.folders, {f"core/m{n}.py": "" for n in range(20)} | {"core/__init__.py": ""}),
    (
        house.slivers,  # a pair, two importers, one in another folder, one that is long
        {
            "cli/plan.py": "from graflow_ckpt.cli import _plan, many\n",
            "cli/_plan.py": "from graflow_ckpt.cli import many, large\n",
            "cli/many.py": "from graflow_ckpt.core import far\n",
            "cli/large.py": "\n" * 121,
            "core/far.py": "",
        },
    ),
    (house.prefixes, {"core/far_a.py": "", "core/far_b.py": "", "engine/far_c.py": "", "core/far.py": ""}),
    (house.classes_twice, {"core/a.py": "class _A: ...\nclass B: ...\n", "frontends/b.py": "class B: ...\n"}),
    (
        house.cycles_later,
        {
            "core/a.py": "from graflow_ckpt.core import b\n",
            "core/b.py": "if TYPE_CHECKING:\n    from graflow_ckpt.core.a import x\n",
        },
    ),
    (house.imports_in_functions, {"core/a.py": "import graflow_ckpt\ndef f():\n    import graflow_other\n"}),
    (
        house.assignments,
        {
            "engine/a.py": "def f(self):\n    self.x = 1\n    made = self.A()\n    made.x = 1\n",
            "engine/b.py": "def f():\n    with Other.of(1) as other:\n        other.x = 1\n    x['y'] = 1\n",
            "fleet/c.py": "def f(self):\n    copied = replace(self)\n    copied.x = 1\n",
            "core/a.py": "def f(x):\n    x.y = 1\n",
        },
    ),
    (house.long_functions, {"core/a.py": TALL.removesuffix("    pass\n")}),
    (
        house.runs,  # seven lines; eight with an import among them
        {
            "core/a.py": BLOCK.partition("\n")[2] + "import os\nend = 1\n",
            "core/b.py": BLOCK.partition("\n")[2] + "import os\n",
        },
    ),
    (house.literals, {"core/a.py": f"{LONG}\ndef f():\n    {LONG}\na = {LONG}\n"}),
    (
        house.names_in_prose,
        {
            "core/a.py": '"""See b.py, core/b.py, my.py and test_c.py; x.pyc, call.py()."""\n',
            "core/b.py": "",
            "../tests/test_c.py": "",
            "../docs/p.md": "<!-- docs: file my.py -->\n```python\nimport other.py\n```\n`my.py`\n",
        },
    ),
]


def build(root: Path, files: Files) -> House:
    for name, text in files.items():
        path = (root / NAME / name).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return House(root)


def name_of(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("rule", "files", "convicted"), BROKEN, ids=name_of)
def test_a_rule_convicts(
    tmp_path: Path, rule: Callable[[House], list[str]], files: Files, convicted: list[str]
) -> None:
    assert rule(build(tmp_path, files)) == convicted


@pytest.mark.parametrize(("rule", "files"), SOUND, ids=name_of)
def test_a_rule_lets_pass(tmp_path: Path, rule: Callable[[House], list[str]], files: Files) -> None:
    assert rule(build(tmp_path, files)) == []


def test_each_rule_that_reads_files_has_convicted_something() -> None:
    assert {rule for rule, _, _ in BROKEN} | {house.listed_in_vain, house.touched} == set(RULES)


def test_an_entry_without_its_module_or_its_tests_is_seen(tmp_path: Path) -> None:
    small = build(tmp_path, {"cli/app.py": "", "testing/x.py": "", "../tests/acceptance/x.py": ""})

    found = house.listed_in_vain(small)

    assert not any(entry.startswith("cli/") for entry in found)  # both are there
    assert any(entry.startswith("testing/") for entry in found)  # its tests are gone
    assert any(entry.startswith("core/protocols.py") for entry in found)  # the module is


@pytest.fixture(scope="module")
def package() -> House:
    return House()


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_package_breaks_a_rule_no_more_often_than_it_may(
    package: House, rule: Callable[[House], list[str]]
) -> None:
    found = rule(package)

    assert len(found) <= CEILINGS.get(rule, RULES[rule]), "\n".join(found)


def test_a_ceiling_goes_when_its_rule_is_reached() -> None:
    assert {rule.__name__ for rule, ceiling in CEILINGS.items() if ceiling <= RULES[rule]} == set()


def test_a_facade_is_a_class_of_the_package(package: House) -> None:
    assert set(house.FACADES) <= {node.name for module in package.modules for node in module.classes}


def test_a_local_task_touches_what_writes_its_checkpoint_and_nothing_of_a_fleet() -> None:
    found = house.touched(House())

    assert {"stores/files/trio.py", "core/apply.py"} <= set(found)
    assert not any(name.startswith("fleet/") for name in found)


def test_the_table_has_a_row_for_each_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "RULES", {rule: bar for rule, bar in RULES.items() if rule != house.touched})

    found = {what: (now, bar) for what, now, bar in rows(build(tmp_path, {"stores/a.py": "x = 1\n"}))}

    assert len(found) == 4 + len(RULES) - 1
    assert found["Modules of the package"] == (1, 230)
    assert found["Lines of stores, wrappers, contracts; with Lua, SQL"] == (1, 10_500)
