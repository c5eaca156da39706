"""Every variable that a file of a deployment names is one that something reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graflow_ckpt.interfaces.sources import ALONE, NAMES, OF_COMPOSE, PREFIX
from tests.deploy.composed import ROOT, document, variables

FILES = [
    ROOT / "docker-compose.yml",
    ROOT / "Makefile",
    ROOT / "docs" / "deployment.md",
    *sorted(path for path in (ROOT / "workers").iterdir() if path.is_file()),
]
OURS = {PREFIX + name.upper() for name in (*NAMES, *ALONE)}
OF_THE_FILE = {PREFIX + name.upper() for name in OF_COMPOSE}


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_a_variable_that_is_named_is_read(file: Path) -> None:
    named = set(re.findall(rf"{PREFIX}\w+", file.read_text(encoding="utf-8"))) - {PREFIX}

    assert named - OURS <= OF_THE_FILE & variables()


def test_a_worker_is_given_what_a_worker_reads() -> None:
    assert set(document()["services"]["worker"]["environment"]) <= OURS


def test_the_library_knows_the_variables_of_the_compose_file() -> None:
    assert variables() - OURS == OF_THE_FILE
