"""The systemd units: what systemd takes, what drains and restarts a pool, what would break one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.composed import document
from tests.deploy.units import EXAMPLE, ONE, ROOT, SEVERAL, environment, service, settings

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


@UNITS
def test_a_pool_is_always_started_again_but_for_a_wrong_setting(unit: Path) -> None:
    assert service(unit)["Restart"] == "always"
    assert service(unit)["RestartPreventExitStatus"] == "2"
    assert ("Unit", "StartLimitIntervalSec", "0") in settings(unit)


@UNITS
def test_a_pool_has_its_grace_period_to_drain(unit: Path) -> None:
    grace = int(environment(EXAMPLE.read_text(encoding="utf-8"))["GRAFLOW_CKPT_GRACE"])

    assert int(service(unit)["TimeoutStopSec"]) >= grace + 10
    assert service(unit)["KillMode"] == "mixed", "the pool alone gets the signal"


@UNITS
def test_a_task_that_the_kernel_kills_does_not_stop_the_pool(unit: Path) -> None:
    assert service(unit)["OOMPolicy"] == "continue"


@UNITS
def test_it_does_not_run_as_root(unit: Path) -> None:
    assert service(unit)["User"] == "graflow-ckpt"
    assert service(unit)["NoNewPrivileges"] == "yes"
    assert service(unit)["CapabilityBoundingSet"] == ""


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
    assert service(unit)["ProtectSystem"] == "strict"
    assert service(unit)["WorkingDirectory"] == f"%S/{service(unit)['StateDirectory']}"


@UNITS
def test_its_command_is_one_that_the_package_installs(unit: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert Path(service(unit)["ExecStart"].split()[0]).name in project["project"]["scripts"]


def test_the_example_of_its_settings_has_all_that_compose_gives_to_a_worker() -> None:
    example = environment(EXAMPLE.read_text(encoding="utf-8"), comments=True)

    assert set(document()["services"]["worker"]["environment"]) <= set(example)
    assert "GRAFLOW_CKPT_KEY_FILE" in example
