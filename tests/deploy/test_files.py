"""The files of a deployment, as far as can be seen without an engine.

workers/Dockerfile: not root, built of nothing but the package. The systemd units: what systemd takes, what
drains and restarts a pool, what would break one. Every variable named in a file is one that something reads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graflow_ckpt.links.environment import ALONE, NAMES, OF_COMPOSE, PREFIX
from tests.deploy.files import EXAMPLE, ONE, SEVERAL, Stage, copied, environment, service, settings, stages
from tests.deploy.test_compose import ROOT, document, variables

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
    assert name == "CMD" or words[0] in PROJECT["project"]["scripts"]
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"  # which drains


def test_the_extra_that_it_installs_exists() -> None:
    (extra,) = re.findall(r"'\.\[([\w,]+)\]'", runs(BUILD))

    assert extra in PROJECT["project"]["optional-dependencies"]


# --- units ------------------------------------------------------------------------------


UNITS = pytest.mark.parametrize("unit", [ONE, SEVERAL], ids=["one", "several"])


def refusal(unit: Path, folder: Path) -> str:
    """What systemd has against it, with a command that exists here; nothing where there is no systemd."""
    if shutil.which("systemd-analyze") is None:
        return ""
    text = unit.read_text(encoding="utf-8")
    file = folder / unit.name.replace("@", "@gpu")
    file.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    argv = ["systemd-analyze", "verify", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return "\n".join(line for line in done.stderr.splitlines() if file.name in line)


@UNITS
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    assert refusal(unit, tmp_path) == ""
    assert {section for section, _, _ in settings(unit)} == {"Unit", "Service", "Install"}


def test_the_two_differ_in_what_the_instance_names_only() -> None:
    one, several = settings(ONE), settings(SEVERAL)

    assert [value for value in one if value not in several] == [
        ("Unit", "Description", "graflow_ckpt workers"),
        ("Service", "ExecStart", "/opt/graflow-ckpt/bin/graflow-ckpt worker"),
    ]
    assert [value for value in several if value not in one] == [
        ("Unit", "Description", "graflow_ckpt workers (%i)"),
        ("Service", "EnvironmentFile", "-/etc/graflow-ckpt/worker-%i.env"),
        ("Service", "ExecStart", "/opt/graflow-ckpt-%i/bin/graflow-ckpt worker"),
    ]


SET = {
    "a pool is always started again": ("Restart", "always"),
    "but for a wrong setting": ("RestartPreventExitStatus", "2"),
    "the pool alone gets the signal": ("KillMode", "mixed"),
    "a task that the kernel kills does not stop the pool": ("OOMPolicy", "continue"),
    "a pool does not run as root": ("User", "graflow-ckpt"),
    "and gets no rights later": ("NoNewPrivileges", "yes"),
    "nor has any": ("CapabilityBoundingSet", ""),
    "it writes nowhere else": ("ProtectSystem", "strict"),
}


@UNITS
@pytest.mark.parametrize(("name", "value"), SET.values(), ids=SET)
def test_a_unit_says_what_a_pool_needs(unit: Path, name: str, value: str) -> None:
    assert service(unit)[name] == value


@UNITS
def test_a_pool_has_its_grace_period_to_drain(unit: Path) -> None:
    grace = int(environment(EXAMPLE.read_text(encoding="utf-8"))["GRAFLOW_CKPT_GRACE"])

    assert int(service(unit)["TimeoutStopSec"]) >= grace + 10
    assert ("Unit", "StartLimitIntervalSec", "0") in settings(unit)  # however often it is started again


@UNITS
@pytest.mark.parametrize(
    "setting",
    [
        "PrivateDevices",  # GPUs
        "ProtectClock",  # GPUs: it implies a list of allowed devices
        "DeviceAllow",
        "MemoryDenyWriteExecute",  # numba, torch
        "ProtectProc",  # the owners of tasks that other pools run would look dead
        "ProcSubset",
        "PrivatePIDs",
        "PrivateUsers",
        "DynamicUser",  # another uid after each start: who owns the checkpoints?
        "PrivateNetwork",
    ],
)
def test_nothing_is_set_that_would_break_a_task(unit: Path, setting: str) -> None:
    assert setting not in service(unit)


@UNITS
def test_it_may_write_where_it_runs(unit: Path) -> None:
    assert service(unit)["WorkingDirectory"] == f"%S/{service(unit)['StateDirectory']}"


@UNITS
def test_the_command_of_a_unit_is_one_that_the_package_installs(unit: Path) -> None:
    assert Path(service(unit)["ExecStart"].split()[0]).name in PROJECT["project"]["scripts"]


def test_the_example_of_its_settings_has_all_that_compose_gives_to_a_worker() -> None:
    example = environment(EXAMPLE.read_text(encoding="utf-8"), comments=True)

    assert set(document()["services"]["worker"]["environment"]) <= set(example)
    assert "GRAFLOW_CKPT_KEY_FILE" in example


# --- variables --------------------------------------------------------------------------


NAMING = [
    ROOT / "docker-compose.yml",
    ROOT / "Makefile",
    ROOT / "docs" / "deployment.md",
    *sorted(path for path in (ROOT / "workers").iterdir() if path.is_file()),
]
OURS = {PREFIX + name.upper() for name in (*NAMES, *ALONE)}
OF_THE_FILE = {PREFIX + name.upper() for name in OF_COMPOSE}


@pytest.mark.parametrize("file", NAMING, ids=[file.name for file in NAMING])
def test_a_variable_that_is_named_is_read(file: Path) -> None:
    named = set(re.findall(rf"{PREFIX}\w+", file.read_text(encoding="utf-8"))) - {PREFIX}

    assert named - OURS <= OF_THE_FILE & variables()


def test_a_worker_is_given_what_a_worker_reads() -> None:
    assert set(document()["services"]["worker"]["environment"]) <= OURS


def test_the_library_knows_the_variables_of_the_compose_file() -> None:
    assert variables() - OURS == OF_THE_FILE
