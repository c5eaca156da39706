"""Mounts: a key that goes before its checkpoints is warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.checkpoint.seal import key_storage_warning, passing_warning
from graflow_ckpt.stores.mounts import file_system


@pytest.fixture
def table(tmp_path: Path) -> Path:
    mounts = [
        "overlay / overlay rw 0 0",
        f"/dev/sda1 {tmp_path}/disk ext4 rw 0 0",
        f"tmpfs {tmp_path}/disk/memory tmpfs rw 0 0",
        rf"/dev/sdb1 {tmp_path}/my\040disk xfs rw 0 0",
        f"tmpfs {tmp_path}/twice tmpfs rw 0 0",
        f"/dev/sdc1 {tmp_path}/twice ext4 rw 0 0",
        "odd",
    ]
    file = tmp_path / "mounts"
    file.write_text("\n".join(mounts) + "\n")
    return file


@pytest.mark.parametrize(
    ("home", "target", "warned"),
    [
        ("home", "disk/checkpoints", True),
        ("disk/memory", "disk", True),
        ("disk/memory", "my disk/checkpoints", True),
        ("home", "twice", True),
        ("home", "elsewhere", False),
        ("disk/memory", "home", False),
        ("disk", "disk", False),
        ("disk", "my disk", False),
        ("diskette", "disk", True),
        ("twice", "disk", False),
    ],
)
def test_a_key_is_warned_of_if_it_goes_before_its_checkpoints(
    tmp_path: Path, table: Path, home: str, target: str, warned: bool
) -> None:
    warning = key_storage_warning(tmp_path / target, {"XDG_STATE_HOME": str(tmp_path / home)}, table)

    assert (warning is not None) is warned
    assert warning is None or str(tmp_path / target) in warning


def test_the_file_system_of_a_relative_target_is_that_of_where_it_leads(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path)

    assert key_storage_warning("link/checkpoints", {"XDG_STATE_HOME": str(tmp_path / "home")}, table)


def test_a_key_of_the_environment_is_not_warned_of(tmp_path: Path, table: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "GRAFLOW_CKPT_KEY": "k:00"}

    assert key_storage_warning(tmp_path / "disk", env, table) is None


def test_where_there_is_no_table_nothing_is_said(tmp_path: Path) -> None:
    assert key_storage_warning(tmp_path, {"HOME": "/"}, tmp_path / "none") is None


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    assert key_storage_warning(tmp_path) is None or isinstance(key_storage_warning(tmp_path), str)


@pytest.mark.parametrize(
    ("target", "kind"),
    [("disk/new/folder", "ext4"), ("disk/memory", "tmpfs"), ("my disk", "xfs"), ("x", "overlay")],
)
def test_the_kind_of_a_file_system_is_told(tmp_path: Path, table: Path, target: str, kind: str) -> None:
    assert file_system(tmp_path / target, table) == kind


def test_without_a_table_the_kind_of_a_file_system_is_not_known(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "none") is None


def test_without_a_home_a_place_that_ends_with_it_is_warned_of(table: Path, tmp_path: Path) -> None:
    assert "on overlay" in str(passing_warning(tmp_path / "elsewhere", {}, table))
    assert "on tmpfs" in str(passing_warning(tmp_path / "disk" / "memory", {}, table))
    assert passing_warning(tmp_path / "disk", {}, table) is None
    assert passing_warning(tmp_path / "elsewhere", {"HOME": "/"}, table) is None
