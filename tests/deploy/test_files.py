"""workers/Dockerfile: not root, built of nothing but the package. What can be seen without an engine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, Stage, copied, stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD, FINAL = stages()


def runs(stage: Stage) -> str:
    return "\n".join(run.text for run in stage.all("RUN"))


def test_the_base_is_one_image_whose_python_and_debian_are_fixed() -> None:
    assert BUILD.image == FINAL.image
    fixed = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", FINAL.image)
    assert fixed is not None
    assert f"Programming Language :: Python :: {fixed[1]}" in PROJECT["project"]["classifiers"]


def test_everything_that_is_copied_exists() -> None:
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_everything_that_the_package_is_built_of_is_copied() -> None:
    project, hatch = PROJECT["project"], PROJECT["tool"]["hatch"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    needed |= {Path(hatch["version"]["path"]).parts[0], *hatch["build"]["targets"]["wheel"]["packages"]}

    assert needed == set(copied())


def test_the_builder_sees_what_is_copied_and_nothing_else() -> None:
    first, *rules = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]

    assert first == "*", "everything is left out that is not named, .env and .git above all"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == set(copied())
    assert [rule for rule in rules if not rule.startswith("!")] == ["**/__pycache__", "**/*.py[cod]"]


def test_what_is_built_is_taken_over_and_owned_by_root() -> None:
    (taken,) = FINAL.all("COPY")

    assert taken.flags == {"from": BUILD.name}
    assert len(set(taken.text.split())) == 1, "an environment is tied to its place"
    assert f"venv --without-pip {taken.text.split()[0]}" in runs(BUILD)


def test_the_final_image_gets_nothing_from_a_network() -> None:
    for run in FINAL.all("RUN"):
        assert not re.search(r"\b(apt|apt-get|pip|curl|wget|git)\b", run.text)


def test_it_does_not_run_as_root() -> None:
    user = re.fullmatch(r"(\d+):(\d+)", FINAL.last("USER").text)

    assert user is not None, "a number, so that Kubernetes can tell"
    assert int(user[1]) >= 1000
    made = runs(FINAL)
    assert f"useradd --uid {user[1]} --gid {user[2]}" in made
    assert f"install -d -o {user[1]} -g {user[2]} -m 0700 {FINAL.last('WORKDIR').text}" in made
    assert f"--home-dir {FINAL.last('WORKDIR').text}" in made


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD", "HEALTHCHECK"])
def test_no_shell_stands_before_a_command(name: str) -> None:
    words = FINAL.last(name).exec_form

    assert isinstance(words, list)
    assert all(isinstance(word, str) for word in words)


def test_the_command_is_one_that_the_package_installs() -> None:
    assert FINAL.last("ENTRYPOINT").exec_form[0] in PROJECT["project"]["scripts"]
    assert FINAL.last("HEALTHCHECK").exec_form[0] in PROJECT["project"]["scripts"]


def test_it_is_stopped_by_the_signal_that_drains() -> None:
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"


def test_the_extra_that_it_installs_exists() -> None:
    (extra,) = re.findall(r"'\.\[([\w,]+)\]'", runs(BUILD))

    assert extra in PROJECT["project"]["optional-dependencies"]
