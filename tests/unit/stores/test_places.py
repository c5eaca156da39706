"""Where checkpoints are kept when nobody has said where."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import open_store, places
from graflow_ckpt.stores.sqlite_names import folder_of, own_file
from tests.unit.stores.redis_trios import put

POSTGRES = "postgresql://me@host/runs"


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def keep(store: str, session: str, **meta: str) -> None:
    put(open_store(store), f"session_{session}_step_1_1-1", "stage", size=10, session=session, **meta)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"GRAFLOW_CKPT_STORE": "runs"}, "runs"),
        ({"GRAFLOW_CKPT_STORE": "runs", "WORKFLOW_CHECKPOINT_BACKEND": "memory"}, "runs"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "postgres", "WORKFLOW_CHECKPOINT_DSN": POSTGRES}, POSTGRES),
        ({"WORKFLOW_CHECKPOINT_DSN": POSTGRES}, POSTGRES),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "memory"}, "memory:"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "local"}, "checkpoints"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "file", "WORKFLOW_CHECKPOINT_DSN": "/srv/runs"}, "/srv/runs"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "SQLite"}, "sqlite://"),
        (
            {"WORKFLOW_CHECKPOINT_BACKEND": "sqlite", "WORKFLOW_CHECKPOINT_DSN": "/srv/runs.db"},
            "sqlite:////srv/runs.db",
        ),
    ],
)
def test_the_environment_names_a_store(env: dict[str, str], expected: str | None) -> None:
    assert places.said(env) == expected


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WORKFLOW_CHECKPOINT_BACKEND": "tape"}, "is none of: memory, local"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "postgres"}, "Set WORKFLOW_CHECKPOINT_DSN"),
        ({"WORKFLOW_CHECKPOINT_BACKEND": "s3", "WORKFLOW_CHECKPOINT_DSN": POSTGRES}, "leads to postgres"),
    ],
)
def test_a_backend_that_cannot_be_is_refused(env: dict[str, str], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        places.said(env)


def test_programs_keep_checkpoints_in_a_folder_and_the_command_line_in_the_users_database() -> None:
    assert places.for_program(None) == places.for_program("s") == "checkpoints"
    assert places.for_command_line() == "sqlite://"

    Path("checkpoints").mkdir()

    assert places.for_command_line() == "checkpoints"


def test_a_session_stays_where_it_is_whoever_asks() -> None:
    keep("sqlite://", "made")
    keep("checkpoints", "here")

    assert places.for_program("made") == "sqlite://"
    assert places.for_program("here", default="sqlite://") == "checkpoints"
    assert places.for_program("new") == "checkpoints"
    assert places.for_program("new", default="sqlite://") == "sqlite://"
    assert places.for_program("here", env={"USE_SQLITE_CHECKPOINTS": "true"}) == "checkpoints"


def test_a_session_of_another_program_is_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    keep("sqlite://", "made", file="/there/program.py")

    assert places.for_program("made", "/there/program.py") == "sqlite://"
    assert places.for_program("made", "/here/program.py", "sqlite://") == "checkpoints"
    assert "graflow-ckpt resume made --store sqlite://" in caplog.text


def test_to_look_makes_nothing() -> None:
    places.for_program("s")

    assert places.others("checkpoints") == ()
    assert list(Path().iterdir()) == []


def test_other_places_count_only_where_nobody_has_named_one() -> None:
    keep("sqlite://", "made")
    keep("checkpoints", "here")

    assert places.others("checkpoints") == ("sqlite://",)
    assert places.others("sqlite://") == ("checkpoints",)
    assert places.others("elsewhere") == ()
    assert places.others("checkpoints", {"GRAFLOW_CKPT_STORE": "checkpoints"}) == ()
    own = folder_of(own_file())
    assert [places.goes_without_saying(place) for place in ("checkpoints", own, "other")] == [
        True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("said", "share"), [("10%", 0.1), ("0.5", 0.5), ("25 %", 0.25)])
def test_a_share_of_new_sessions_goes_to_the_database(said: str, share: float) -> None:
    env = {"USE_SQLITE_CHECKPOINTS": said}
    where = {f"s{n}": places.for_program(f"s{n}", env=env) for n in range(2000)}

    found = sum(place == "sqlite://" for place in where.values()) / 2000
    assert abs(found - share) < 0.05
    assert {name: places.for_program(name, env=env) for name in where} == where
    assert {places.for_program(None, env=env) for _ in range(200)} == {"checkpoints", "sqlite://"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [("true", "sqlite://"), ("100%", "sqlite://"), ("False", "checkpoints"), ("0%", "checkpoints")],
)
def test_all_of_them_or_none(said: str, expected: str) -> None:
    assert {places.for_program(None, env={"USE_SQLITE_CHECKPOINTS": said}) for _ in range(50)} == {expected}


@pytest.mark.parametrize("said", ["maybe", "-1", "2", "110%"])
def test_what_is_no_share_is_refused(said: str) -> None:
    with pytest.raises(CheckpointError, match="USE_SQLITE_CHECKPOINTS"):
        places.for_program(None, env={"USE_SQLITE_CHECKPOINTS": said})


# --- one checkpoint elsewhere ------------------------------------------------------------

AUTO = "checkpoints/session_s_step_3_1-7.pkl"


def test_storage_of_the_same_kind_is_the_store_at_hand() -> None:
    assert places.path_at("local", open_store("checkpoints"), AUTO) == AUTO
    assert places.path_at("local", open_store("checkpoints"), AUTO, "/srv/mine.pkl") == "/srv/mine.pkl"
    assert places.path_at("memory", open_store("memory:"), AUTO, "mine") == "mine"


def test_another_storage_is_found_in_the_environment() -> None:
    own = open_store("checkpoints")
    env = {"GRAFLOW_CKPT_AZURE_URL": "az://runs/mine", "GRAFLOW_CKPT_STORE": "sqlite:///a.db"}

    assert places.path_at("azure", own, AUTO, env=env) == "az://runs/mine/s_step_3_1-7.pkl"
    assert places.path_at("sqlite", own, AUTO) == f"{folder_of(own_file())}/s_step_3_1-7.pkl"
    assert places.path_at("sqlite", own, AUTO, "mine", env).endswith("/a.db/mine")
    assert places.path_at("local", open_store("sqlite:///a.db"), AUTO) == "checkpoints/s_step_3_1-7.pkl"


def test_a_path_of_that_storage_stays() -> None:
    assert places.path_at("s3", open_store("checkpoints"), AUTO, "s3://bucket/x.pkl") == "s3://bucket/x.pkl"


@pytest.mark.parametrize(
    ("storage", "path", "words"),
    [
        ("s3", None, "GRAFLOW_CKPT_S3_URL"),
        ("tape", None, "storage='tape' is none of"),
        ("s3", "az://bucket/x", "is not at storage='s3'"),
        ("s3", "/srv/x.pkl", "is not at storage='s3'"),
    ],
)
def test_a_storage_that_is_nowhere_is_refused(storage: str, path: str | None, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        places.path_at(storage, open_store("checkpoints"), AUTO, path, {})
