"""Where settings come from, and which of several sources counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.interfaces.sources import BadSetting, Origin, find, gather, unknown

KEY = "id:" + "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str, path: str = "graflow-ckpt.toml", mode: int = 0o600) -> Path:
    place = Path(path).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)
    return place


def values(flags: Mapping[str, Any] | None = None, **environment: str) -> dict[str, Any]:
    return gather(flags, None, environment).values


def test_nothing_said_anywhere_is_nothing() -> None:
    found = gather({}, None, {})

    assert (found.values, found.origins, found.file) == ({}, {}, None)


def test_a_flag_wins_over_the_environment_and_that_over_the_file() -> None:
    path = str(written('[fleet]\nqueues = "file"\nlog = "json"\nlease = 20'))
    environment = {"GRAFLOW_CKPT_QUEUES": "environment", "GRAFLOW_CKPT_LOG": "text"}

    found = gather({"queues": "flag", "log": None}, None, environment)

    assert found.values == {"queues": "flag", "log": "text", "lease": 20}
    assert found.origins == {
        "queues": Origin("flag", "--queues"),
        "log": Origin("environment", "GRAFLOW_CKPT_LOG"),
        "lease": Origin("file", path),
    }


def test_an_empty_variable_is_as_good_as_none() -> None:
    written("[fleet]\nworkers = 3")

    assert values(GRAFLOW_CKPT_WORKERS=" ") == {"workers": 3}


def test_the_key_is_one_setting_in_two_forms() -> None:
    written(f'[fleet]\nkey = "{KEY}"')

    assert values(GRAFLOW_CKPT_KEY_FILE="elsewhere") == {"key_file": "elsewhere"}


def test_a_key_file_lies_beside_the_file_that_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written('[fleet]\nkey_file = "secret/key"')
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")

    assert values() == {"key_file": str(folder / "secret" / "key")}


# --- which file ------------------------------------------------------------------------


def test_the_nearest_file_from_the_working_folder_up_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written("[fleet]\nworkers = 1")
    near = written("[fleet]\nworkers = 2", "a/graflow-ckpt.toml")
    (folder / "a" / "b").mkdir()
    monkeypatch.chdir(folder / "a" / "b")

    assert find(None, {}) == near
    assert values() == {"workers": 2}


def test_a_file_that_is_named_counts_alone_and_the_flag_before_the_variable() -> None:
    written("[fleet]\nworkers = 1\nlease = 20")
    two, three = written("[fleet]\nworkers = 2", "two.toml"), written("[fleet]\nworkers = 3", "three.toml")

    assert gather({}, None, {"GRAFLOW_CKPT_CONFIG": str(two)}).values == {"workers": 2}
    assert gather({}, str(three), {"GRAFLOW_CKPT_CONFIG": str(two)}).values == {"workers": 3}


# --- bad files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[fleet]\nqueuess = "a"', "'queuess'"),
        ("[flet]\nworkers = 1", "'flet'"),
        ("workers = 1", "'workers'"),
        ("fleet = 1", "'fleet'"),
        ("workers", "TOML"),
        ("\udcff", "not text"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_its_name(text: str, named: str) -> None:
    path = Path("graflow-ckpt.toml").absolute()
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(BadSetting) as caught:
        values()

    assert named in caught.value.message
    assert caught.value.where == str(path)


def test_a_mistyped_name_is_told_what_is_meant_and_what_there_is() -> None:
    written("[fleet]\nGRAFLOW_CKPT_QUEUE = 1")

    with pytest.raises(BadSetting) as caught:
        values()

    assert caught.value.hint.startswith("Is queues meant? There are: redis_url, rq_url, key,")


def test_a_named_file_has_to_be_there() -> None:
    with pytest.raises(BadSetting, match=r"nothing\.toml cannot be read: No such file"):
        gather({}, "nothing.toml", {})


# --- whose file ------------------------------------------------------------------------


def test_a_file_that_anybody_can_change_is_refused_whoever_names_it() -> None:
    path = written("[fleet]", mode=0o666)

    with pytest.raises(BadSetting, match="anybody can change it"):
        values()
    with pytest.raises(BadSetting, match="anybody can change it"):
        gather({}, str(path), {})


def test_a_file_of_somebody_else_counts_only_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("[fleet]\nworkers = 2", mode=0o644)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # somebody else asks

    with pytest.raises(BadSetting, match="belongs to user"):
        values()
    assert gather({}, str(path), {}).values == {"workers": 2}


def test_a_key_that_others_can_read_counts_only_where_its_file_is_named() -> None:
    path = written(f'[fleet]\nkey = "{KEY}"', mode=0o644)

    with pytest.raises(BadSetting, match="others can read it") as caught:
        values()
    assert "ab" * 8 not in str(caught.value)
    assert gather({}, str(path), {}).values == {"key": KEY}


# --- variables -------------------------------------------------------------------------


def test_variables_that_nothing_reads_are_told() -> None:
    environment = {
        "GRAFLOW_CKPT_QUEUE": "a", "GRAFLOW_CKPT_QUEUES": "a", "GRAFLOW_CKPT_STORE": "x", "PATH": "/bin",
        "GRAFLOW_CKPT_REDIS_PASSWORD": "x",
    }  # fmt: skip

    assert unknown(environment) == ["GRAFLOW_CKPT_QUEUE"]
