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


@pytest.mark.parametrize(
    ("broken_file", "code"),
    [
        ("core/graph.py", "import graflow_ckpt.engine"),
        ("core/graph.py", "import threading"),
        ("core/graph.py", "import msgpack"),
        ("stores/keyed.py", "from graflow_ckpt import sessions"),
        ("stores/keyed.py", "import graflow_ckpt.stores.files"),
        ("stores/files/trio.py", "import graflow_ckpt.stores.drivers"),
        ("stores/drivers/redis/driver.py", "import graflow_ckpt.stores.drivers.sqlite"),
        ("checkpoint/values/codec.py", "import graflow_ckpt.checkpoint.program"),
        ("checkpoint/archive.py", "import graflow_ckpt.checkpoint.care"),
        ("sessions/protocol.py", "import graflow_ckpt.sessions.redis"),
        ("cli/terminal.py", "import graflow_ckpt.cli.run"),
        ("observers/prometheus.py", "import graflow_ckpt.config"),
        ("frontends/dsl.py", "import graflow_ckpt.fleet"),
        ("links/redis.py", "import graflow_ckpt.sessions"),
        ("engine/run.py", "import redis"),
        ("helpers/__init__.py", "# a package that is in no layer"),
    ],
)
def test_the_contracts_bite(tmp_path: Path, broken_file: str, code: str) -> None:
    layers = (
        "core links sessions stores checkpoint engine frontends fleet config observers cli stores/files "
        "stores/drivers stores/drivers/redis stores/drivers/sqlite stores/around checkpoint/values "
        "checkpoint/program checkpoint/care sessions/redis cli/run"
    )
    for layer in layers.split():
        (tmp_path / "graflow_ckpt" / layer).mkdir(parents=True)
        (tmp_path / "graflow_ckpt" / layer / "__init__.py").touch()
    (tmp_path / "graflow_ckpt" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert lint_imports(tmp_path).returncode == 0, "the tree is sound before it is broken"

    path = tmp_path / "graflow_ckpt" / broken_file
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{code}\n", encoding="utf-8")

    assert lint_imports(tmp_path).returncode == 1


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
