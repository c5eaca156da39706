"""What settings may be, and what is said of one that may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.interfaces.settings import FleetSettings, Resolved, resolve
from graflow_ckpt.interfaces.sources import FLAGS, NAMES, BadSetting, Given, Origin, gather

SECRET = "geheim"
URL = f"redis://me:{SECRET}@host:6380/2"
KEY = "id:" + "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolved(**environment: str) -> Resolved:
    return resolve(gather({}, None, {f"GRAFLOW_CKPT_{name}": value for name, value in environment.items()}))


def refused(**environment: str) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        resolved(**environment)
    return caught.value


def test_each_setting_can_be_said_by_its_name() -> None:
    assert tuple(FleetSettings.model_fields) == NAMES


def test_without_a_word_there_are_defaults() -> None:
    found = resolved()

    assert found.url is None
    assert found.fleet.queues == ("default",)
    assert (found.fleet.lease, found.fleet.grace, found.fleet.log) == (
        15.0,
        30.0,
        "text",
    )
    assert found.origin("queues") == Origin("default")


def test_words_become_values() -> None:
    found = resolved(
        QUEUES="gpu, default gpu", WORKERS="4", LEASE="90s", GRACE="5m", BUDGET="500ms", PRELOAD="a.b,c"
    ).fleet

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
    assert (
        "GRAFLOW_CKPT_QUEUES cannot be used: 'g/pu' is not a queue name" in refused(QUEUES="a,g/pu").message
    )


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
    assert found.url == URL


def test_what_was_resolved_becomes_the_environment_of_the_process() -> None:
    environment: dict[str, Any] = {
        "GRAFLOW_CKPT_KEY_FILE": "old",
        "GRAFLOW_CKPT_RQ_URL": "old",
        "PATH": "/bin",
    }

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
