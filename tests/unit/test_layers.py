"""Who may import whom, what importing the package costs, and the shape that files keep.

The contracts are in pyproject.toml; here they are held against the package, and against a tree that breaks
them, so that a contract which no longer bites is seen.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graflow_ckpt"

HEAVY = [
    "asyncio",
    "click",
    "cloudpickle",
    "concurrent.futures",
    "numpy",
    "pydantic",
    "redis",
    "rich",
    "rq",
]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    program = f"from importlinter.cli import lint_imports_command; lint_imports_command({['--no-cache']!r})"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )


def modules_loaded_by(statement: str) -> set[str]:
    program = (
        "import json, sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_imports_point_down_and_siblings_do_not_know_each_other() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


LAYERS = """core links sessions stores checkpoint engine frontends fleet config observers cli cli/run
    stores/files stores/drivers stores/drivers/redis stores/drivers/sqlite stores/around sessions/redis
    checkpoint/values checkpoint/program checkpoint/care"""
BROKEN = [
    ("core/graph", "graflow_ckpt.engine"),
    ("core/graph", "threading"),
    ("core/graph", "msgpack"),
    ("stores/keyed", "graflow_ckpt.sessions"),
    ("stores/keyed", "graflow_ckpt.stores.files"),
    ("stores/files/trio", "graflow_ckpt.stores.drivers"),
    ("stores/drivers/redis/driver", "graflow_ckpt.stores.drivers.sqlite"),
    ("checkpoint/values/codec", "graflow_ckpt.checkpoint.program"),
    ("checkpoint/archive", "graflow_ckpt.checkpoint.care"),
    ("sessions/protocol", "graflow_ckpt.sessions.redis"),
    ("cli/terminal", "graflow_ckpt.cli.run"),
    ("observers/prometheus", "graflow_ckpt.config"),
    ("frontends/dsl", "graflow_ckpt.fleet"),
    ("links/redis", "graflow_ckpt.sessions"),
    ("engine/run", "redis"),
]


def sound_tree(root: Path) -> Path:
    for layer in ("", *LAYERS.split()):
        (root / "graflow_ckpt" / layer).mkdir(parents=True)
        (root / "graflow_ckpt" / layer / "__init__.py").touch()
    (root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return root


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of a tree that is sound but for these imports."""
    root = sound_tree(tmp_path_factory.mktemp("tree"))
    assert lint_imports(root).returncode == 0, "the tree is sound before it is broken"
    for module, imported in BROKEN:
        home, _, name = imported.rpartition(".")
        with (root / "graflow_ckpt" / f"{module}.py").open("a") as file:
            file.write(f"from {home} import {name}\n" if home else f"import {name}\n")
    return " ".join(lint_imports(root).stdout.split())


@pytest.mark.parametrize(("module", "imported"), BROKEN)
def test_the_contracts_bite(said: str, module: str, imported: str) -> None:
    assert f"graflow_ckpt.{module.replace('/', '.')} -> {imported} (l." in said


def test_a_package_that_is_in_no_layer_is_refused(tmp_path: Path) -> None:
    root = sound_tree(tmp_path)
    (root / "graflow_ckpt" / "helpers").mkdir()
    (root / "graflow_ckpt" / "helpers" / "__init__.py").touch()

    assert lint_imports(root).returncode == 1


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by("import graflow_ckpt")

    assert "graflow_ckpt" in loaded
    assert {heavy for heavy in HEAVY for name in loaded if f"{name}.".startswith(f"{heavy}.")} == set()


def test_what_a_heavy_import_loads_would_be_seen() -> None:
    assert "concurrent.futures" in modules_loaded_by("import concurrent.futures")


def test_every_file_says_what_it_is() -> None:
    assert [name for name, text in sources() if ast.get_docstring(ast.parse(text)) is None] == []


def test_nothing_is_asked_by_hasattr() -> None:
    assert [name for name, text in sources() if "hasattr(" in text] == []
