"""Keys: found in order, made once and whole, refused when others could use them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from graflow_ckpt.checkpoint.seals import key_storage_warning, passing_warning
from graflow_ckpt.core.errors import CheckpointError, UnsafeCheckpoint
from graflow_ckpt.stores.around.keys import Keyring, key_file, local_key_path, new_key, put_first
from graflow_ckpt.stores.files.disk import file_system

ONE, TWO = f"one:{'ab' * 32}", f"two:{'CD' * 32}"


def state(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder)}


def test_the_first_of_several_keys_seals_and_all_verify() -> None:
    for text in (f"{ONE},{TWO}", f" {ONE}\n{TWO}\n"):
        ring = Keyring.load({"GRAFLOW_CKPT_KEY": text})

        assert ring.signing == ("one", b"\xab" * 32)
        assert ring.secret("two") == b"\xcd" * 32
        assert ring.secret("three") is None
        assert ring.ids == ("one", "two")


def test_a_key_in_the_environment_comes_before_a_file_and_a_file_before_the_local_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(TWO + "\n")
    file.chmod(0o600)
    env = {**state(tmp_path), "GRAFLOW_CKPT_KEY_FILE": str(file)}

    assert Keyring.load({**env, "GRAFLOW_CKPT_KEY": ONE}).ids == ("one",)
    assert Keyring.load(env).ids == ("two",)
    assert not local_key_path(env).exists()


def test_the_local_key_is_made_once_for_the_user_alone(tmp_path: Path) -> None:
    env = state(tmp_path / "a" / "b")

    first, again = Keyring.load(env), Keyring.load(env)

    path = local_key_path(env)
    assert first.signing == again.signing
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["key"]


def test_without_a_state_folder_of_its_own_the_key_is_under_home(tmp_path: Path) -> None:
    for odd in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        path = local_key_path({"HOME": str(tmp_path), **odd})

        assert path == tmp_path / ".local/state/graflow_ckpt/key"


def test_processes_at_once_end_with_one_key(tmp_path: Path) -> None:
    program = """
import sys
from graflow_ckpt.stores.around.keys import Keyring
sys.stdin.read(1)
print(Keyring.load().signing)
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **state(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("x")
        run.stdin.flush()

    keys = {run.communicate()[0] for run in runs}

    assert keys == {f"{Keyring.load(state(tmp_path)).signing}\n"}


def test_who_comes_second_takes_the_key_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = state(tmp_path)
    path = local_key_path(env)
    link = os.link

    def overtaken(draft: Path, target: Path) -> None:
        path.write_text(ONE)
        path.chmod(0o600)
        link(draft, target)

    monkeypatch.setattr(os, "link", overtaken)

    assert Keyring.load(env).ids == ("one",)
    assert os.listdir(path.parent) == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_local_key_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    env = state(tmp_path)
    Keyring.load(env)
    local_key_path(env).chmod(mode)

    with pytest.raises(UnsafeCheckpoint, match="chmod go="):
        Keyring.load(env)


def test_a_local_key_in_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    env = state(tmp_path)
    Keyring.load(env)
    local_key_path(env).parent.chmod(0o770)

    with pytest.raises(UnsafeCheckpoint, match="change"):
        Keyring.load(env)


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o620, 0o602])
def test_a_named_file_that_others_can_read_or_change_is_refused_with_the_command(
    mode: int, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(ONE)
    env = {"GRAFLOW_CKPT_KEY_FILE": str(file)}

    file.chmod(mode)
    with pytest.raises(UnsafeCheckpoint, match=f"chmod go= {file}"):
        Keyring.load(env)
    for sound in (0o600, 0o640, 0o400):
        file.chmod(sound)
        assert Keyring.load(env).ids == ("one",)


def test_a_secret_that_is_mounted_read_only_may_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(ONE)
    file.chmod(0o444)
    mounted = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: mounted)

    assert Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)}).ids == ("one",)


@pytest.mark.parametrize(
    "text",
    [
        "secret",
        "one:abcd",
        ONE[:-1],
        ONE + "0",
        f"{ONE},{ONE}",
        f"{ONE},",
        f"a b:{'ab' * 32}",
        ":" + "ab" * 32,
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Keyring.load({"GRAFLOW_CKPT_KEY": text})

    assert text not in str(caught.value)
    assert "abab" not in str(caught.value)


def test_a_shared_store_without_a_key_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="graflow-ckpt key new"):
        Keyring.load(state(tmp_path), local=False)

    assert not local_key_path(state(tmp_path)).exists()
    assert Keyring.load({"GRAFLOW_CKPT_KEY": ONE}, local=False).ids == ("one",)


def test_a_place_where_no_key_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_KEY") as caught:
        Keyring.load(state(tmp_path / "file"))

    assert str(tmp_path / "file") in caught.value.path


def test_a_named_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(tmp_path / "nowhere")})


def test_a_keyring_shows_ids_and_no_secrets() -> None:
    assert repr(Keyring.load({"GRAFLOW_CKPT_KEY": f"{ONE},{TWO}"})) == "Keyring(one, two)"


def test_new_keys_differ_and_load() -> None:
    one, two = new_key(), new_key()

    assert one != two
    assert Keyring.load({"GRAFLOW_CKPT_KEY": f"{one},{two}"}).ids == (one.split(":")[0], two.split(":")[0])


def test_a_ring_without_keys_is_refused() -> None:
    with pytest.raises(CheckpointError):
        Keyring({})


# --- a new one before the others ---------------------------------------------------------------


def test_a_new_key_is_put_before_the_others_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{new_key()}, {new_key()}")
    file.chmod(0o400)
    before = Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)})

    made = put_first(file)

    after = Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)})
    assert after.signing[0] == made
    assert after.ids == (made, *before.ids)
    assert all(after.secret(key_id) == before.secret(key_id) for key_id in before.ids)
    assert file.stat().st_mode & 0o777 == 0o400
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "real" / "keys", tmp_path / "keys"
    file.parent.mkdir()
    file.write_text(new_key())
    file.chmod(0o600)
    link.symlink_to(file)

    put_first(link)

    assert link.is_symlink()
    assert len(Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(link)}).ids) == 2


def test_of_many_who_put_one_first_at_once_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(new_key())
    file.chmod(0o600)

    with ThreadPoolExecutor(6) as threads:
        made = list(threads.map(lambda _: put_first(file), range(12)))

    assert set(made) < set(Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)}).ids)


def test_a_file_that_is_too_long_to_be_read_whole_is_refused_and_kept(tmp_path: Path) -> None:
    file, one = tmp_path / "keys", len(new_key()) + 1
    fitting = [f"{new_key()}\n" for _ in range((1 << 16) // one)]
    file.write_text("".join(fitting))
    file.chmod(0o600)
    assert len(Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)}).ids) == len(fitting)

    with pytest.raises(CheckpointError, match="at most 65536 characters"):
        put_first(file)  # nothing could read it any more
    assert file.read_text() == "".join(fitting)

    file.write_text("".join([*fitting, f"{new_key()}\n"]))
    with pytest.raises(CheckpointError, match="at most 65536 characters"):
        Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)})


def test_a_damaged_file_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("no key")

    with pytest.raises(CheckpointError, match="Key 1"):
        put_first(file)
    with pytest.raises(CheckpointError, match="No key could be put"):
        put_first(tmp_path / "none")

    assert file.read_text() == "no key"


def test_the_file_of_the_keys_is_the_named_one_or_the_local_one(tmp_path: Path) -> None:
    assert key_file({"GRAFLOW_CKPT_KEY": "x", "GRAFLOW_CKPT_KEY_FILE": "/k"}) is None
    assert key_file({"GRAFLOW_CKPT_KEY_FILE": "/k"}) == Path("/k")
    assert key_file(state(tmp_path)) == local_key_path(state(tmp_path))


@pytest.mark.parametrize("name", ["", "missing", "a\0b"])
def test_a_key_file_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"The key file .* cannot be read"):
        Keyring.load({"GRAFLOW_CKPT_KEY_FILE": f"{tmp_path}/{name}"})


# --- mounts -----------------------------------------------------------------------------


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
