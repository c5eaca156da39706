"""What settings may be, and what is said of one that may not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.config.settings import FLAGS, FleetSettings, Given, Origin, find, gather, resolve
from graflow_ckpt.core.errors import BadSetting
from graflow_ckpt.links.environment import NAMES, unknown

SECRET = "geheim"
URL = f"redis://me:{SECRET}@host:6380/2"
KEY = "id:" + "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolved(**environment: str) -> FleetSettings:
    return resolve(gather({}, None, {f"GRAFLOW_CKPT_{name}": value for name, value in environment.items()}))


def refused(**environment: str) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        resolved(**environment)
    return caught.value


def test_each_setting_can_be_said_by_its_name() -> None:
    assert tuple(field.name for field in fields(FleetSettings)) == (*NAMES, "given")


def test_without_a_word_there_are_defaults() -> None:
    found = resolved()

    assert found.redis_url == ""
    assert found.queues == ("default",)
    assert (found.lease, found.grace, found.log) == (15.0, 30.0, "text")
    assert found.origin("queues") == Origin("default")


def test_words_become_values() -> None:
    found = resolved(
        QUEUES="gpu, default gpu", WORKERS="4", LEASE="90s", GRACE="5m", BUDGET="500ms", PRELOAD="a.b,c"
    )

    assert found.queues == ("gpu", "default")
    assert (found.workers, found.lease, found.grace, found.budget) == (4, 90.0, 300.0, 0.5)
    assert found.preload == ("a.b", "c")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("WORKERS", "0", "a whole number from 1 to 1024"),
        ("WORKERS", "two", "a whole number from 1 to 1024"),
        ("LEASE", "0", "from 1s to 1h"),
        ("LEASE", "1 day", "from 1s to 1h"),
        ("GRACE", "nan", "from 0s to 24h"),
        ("BUDGET", "-1", "from 10ms to 5m"),
        ("LOG", "xml", "text or json"),
        ("CODE_PATIENCE", "soon", "from 0s to 24h"),
        ("QUEUES", ",", "names of queues"),
    ],
)
def test_what_may_not_be_is_refused_with_its_place_and_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    error = refused(**{name: value})

    assert error.message == f"GRAFLOW_CKPT_{name} is {value!r}."
    assert allowed in error.hint
    assert error.setting == name.lower()


def test_a_value_of_a_file_is_refused_with_the_file_and_the_key(folder: Path) -> None:
    path = folder / "graflow-ckpt.toml"
    path.write_text("[fleet]\nworkers = true")

    error = refused()

    assert error.message == f"workers in [fleet] of {path} is 'True'."
    assert error.where == str(path)


def test_a_queue_has_a_name_that_redis_and_rq_take() -> None:
    said = refused(QUEUES="a,g/pu").message

    assert "GRAFLOW_CKPT_QUEUES cannot be used: 'g/pu' is not a queue name" in said


@pytest.mark.parametrize("url", ["http://h/", "redis://u:ge/heim@h/", f"redis://h:{SECRET}/0", "redis://h/x"])
@pytest.mark.parametrize("name", ["REDIS_URL", "RQ_URL"])
def test_what_is_no_address_is_refused_without_what_may_be_a_password(name: str, url: str) -> None:
    error = refused(**{name: url})

    assert error.message.startswith(f"GRAFLOW_CKPT_{name} cannot be used:")
    assert "heim" not in str(error)


def test_what_is_no_key_is_refused_without_showing_it() -> None:
    error = refused(KEY=f"id:{SECRET}")

    assert "GRAFLOW_CKPT_KEY cannot be used" in error.message
    assert SECRET not in str(error)


@pytest.mark.parametrize("name", ["redis_url", "key"])
def test_a_secret_of_a_wrong_kind_is_not_shown_either(name: str) -> None:
    with pytest.raises(BadSetting) as caught:
        resolve(Given({name: [SECRET]}, {name: Origin("file", "f")}))

    assert caught.value.message == f"{name} in [fleet] of f is no text."


def test_nothing_that_is_shown_has_a_secret_in_it() -> None:
    found = resolved(REDIS_URL=URL, RQ_URL=URL, KEY=KEY)

    shown = {name: found.shown(name) for name in NAMES}
    assert shown["redis_url"] == shown["rq_url"] == "redis://host:6380/2"
    assert shown["key"] == "id"
    assert SECRET not in repr(found) + str(shown)
    assert "ab" * 8 not in repr(found) + str(shown)
    assert found.redis_url == URL


def test_what_was_resolved_becomes_the_environment_of_the_process() -> None:
    environment = {"GRAFLOW_CKPT_KEY_FILE": "old", "GRAFLOW_CKPT_RQ_URL": "old", "PATH": "/bin"}

    resolved(REDIS_URL=URL, KEY=KEY).export(environment)

    assert environment == {"GRAFLOW_CKPT_REDIS_URL": URL, "GRAFLOW_CKPT_KEY": KEY, "PATH": "/bin"}


def test_the_page_about_the_command_line_has_each_setting_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    told = {row[0].strip(): [cell.strip() for cell in row] for row in rows if len(row) == 5}

    defaults = resolved()
    for name in NAMES:
        if name in ("key", "key_file"):
            assert name in told["`key`, `key_file`"][0]
            continue
        row = told[f"`{name}`"]
        assert row[1] == f"`{name.upper()}`"
        assert FLAGS[name] in row[2]
        assert row[4] == {"rq_url": "the same", "redis_url": "", "preload": "", "observers": ""}.get(
            name,
            defaults.shown(name) if name == "workers" or name in PERIODS else f"`{defaults.shown(name)}`",
        )


PERIODS = ("lease", "budget", "grace", "code_patience")


# --- where they come from ---------------------------------------------------------------


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
        ('[fleet]\nqueuess = "a"', "'queuess'"), ("[flet]\nworkers = 1", "'flet'"),
        ("workers = 1", "'workers'"), ("fleet = 1", "'fleet'"), ("workers", "TOML"), ("\udcff", "not text"),
    ],
)  # fmt: skip
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

    with pytest.raises(BadSetting, match="every user can change it"):
        values()
    with pytest.raises(BadSetting, match="every user can change it"):
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
