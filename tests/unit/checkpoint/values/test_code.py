"""Code by name, with copies: what a copy may hold, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import numpy as np
import pytest

from graflow_ckpt.checkpoint.program.reader import OWN, QUIET, declaring, origins, task_body
from graflow_ckpt.checkpoint.values.pickles import COPY_LIMIT, live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.task import Task

PROGRAM = """
import logging, sys
from graflow_ckpt.checkpoint.values.pickles import live_bytes
logging.basicConfig(stream=sys.stderr)
data = bytes({size})
def count(): return len(data)
sys.stdout.buffer.write(live_bytes([count, count]))
"""


def made_by_a_program(size: int) -> tuple[bytes, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(size=size)], capture_output=True, check=True)
    return done.stdout, done.stderr.decode()


def test_a_copy_takes_the_small_data_that_its_code_uses() -> None:
    data, said = made_by_a_program(1000)

    assert [count() for count in load_live(data)] == [1000, 1000]
    assert said == ""


def test_large_data_that_code_uses_is_not_in_its_copy() -> None:
    data, said = made_by_a_program(COPY_LIMIT)

    assert len(data) < 1000
    assert said.count("count of __main__ uses more than 1 MiB of global data") == 1
    with pytest.raises(
        CheckpointError, match="__main__ has no 'count', and the checkpoint has only its name"
    ):
        load_live(data)


# --- elsewhere ---------------------------------------------------------------------------


def elsewhere(program: str, opened: str, folder: Path) -> str:
    """What another process says that runs `opened` on the pickle of `made`, which `program` makes."""
    (folder / "made.py").write_text(
        f"from graflow_ckpt.checkpoint.values.pickles import live_bytes\n{dedent(program)}\n"
        "open('pickle', 'wb').write(live_bytes(made))\n"
    )
    (folder / "opened.py").write_text(
        "from graflow_ckpt.checkpoint.values.pickles import load_live\n"
        "def load(): return load_live(open('pickle', 'rb').read())\n" + dedent(opened)
    )
    for name in ("made.py", "opened.py"):
        done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return done.stdout


ASKED = """
    from graflow_ckpt import _restore
    def main(): return "of the process that opens it"
    print(load()())
"""


def test_a_name_of_main_means_the_programs_own_where_it_runs(tmp_path: Path) -> None:
    said = elsewhere("def main(): return 'of the program'\nmade = main", ASKED, tmp_path)

    assert said == "of the process that opens it\n"


def test_in_a_foreign_main_a_name_means_what_was_pickled(tmp_path: Path) -> None:
    """A worker's `__main__` has a function `main`, too."""
    asked = ASKED.replace("    print", "    _restore.in_foreign_main()\n    print")

    said = elsewhere("def main(): return 'of the program'\nmade = main", asked, tmp_path)

    assert said == "of the program\n"


def test_a_cached_function_of_main_is_made_again(tmp_path: Path) -> None:
    program = """
        from functools import lru_cache
        @lru_cache(maxsize=7)
        def twice(n): return 2 * n
        def task(n): return twice(n)
        made = [task, twice]
    """
    asked = "task, twice = load(); print(task(4), twice.cache_parameters()['maxsize'])"

    assert elsewhere(program, asked, tmp_path) == "8 7\n"


@lru_cache
def known(n: int) -> int:
    return n


def test_a_cached_function_of_a_module_stays_itself() -> None:
    assert load_live(live_bytes(known)) is known


def test_a_module_that_was_registered_to_travel_is_not_needed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text(
        "from graflow_ckpt import task\n@task\ndef step(): return helper()\ndef helper(): return 7"
    )
    program = """
        import cloudpickle, lib, os
        cloudpickle.register_pickle_by_value(lib)
        made = lib.step.func
        os.remove('lib.py')
    """

    assert elsewhere(program, "print(load()())", tmp_path) == "7\n"


# --- whose code a module is -------------------------------------------------------------


def plain() -> None: ...


def inside() -> Task:
    def nested() -> None: ...

    return Task("nested", nested)


def test_the_standard_library_is_quiet_and_an_installed_package_has_its_name() -> None:
    of = origins(())

    assert [of("json.decoder"), of("graflow_ckpt.core"), of("numpy.linalg")] == [QUIET, QUIET, "numpy"]
    assert [of(__name__), of("__main__"), of("made_by_exec")] == [OWN, OWN, OWN]


def test_a_package_of_the_tasks_is_the_users_own_but_the_library_never_is() -> None:
    of = origins(["numpy", "json"])

    assert [of("numpy.linalg"), of("json.decoder")] == [OWN, QUIET]


def test_a_package_has_tasks_if_a_name_in_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pack.steps")
    monkeypatch.setitem(sys.modules, "pack.steps", module)
    exec("def run(): ...\ndef helper(): ...", vars(module))
    run, helper = module.run, module.helper
    module.run = Task("run", run)  # type: ignore[attr-defined]

    assert list(declaring([helper, run, run], task_body)) == ["pack"]
    assert list(declaring([helper], task_body)) == []  # made a task of elsewhere
    assert list(declaring([inside().func, np.linalg.norm, print], task_body)) == []
