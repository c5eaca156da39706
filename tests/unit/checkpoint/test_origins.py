"""Whose code a module is."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from graflow_ckpt.checkpoint.reading import OWN, QUIET, Origins, declaring, task_body
from graflow_ckpt.core.task import Task


def plain() -> None: ...


def inside() -> Task:
    def nested() -> None: ...

    return Task("nested", nested)


def test_the_standard_library_is_quiet_and_an_installed_package_has_its_name() -> None:
    of = Origins(()).of

    assert [of("json.decoder"), of("graflow_ckpt.core"), of("numpy.linalg")] == [QUIET, QUIET, "numpy"]
    assert [of(__name__), of("__main__"), of("made_by_exec")] == [OWN, OWN, OWN]


def test_a_package_of_the_tasks_is_the_users_own_but_the_library_never_is() -> None:
    of = Origins(["numpy", "json"]).of

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
