"""Where checkpoints are kept when nobody has said where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, SessionElsewhere
from graflow_ckpt.stores import open_store, places
from graflow_ckpt.stores.drivers.sqlite.names import folder_of, own_file
from tests.unit.stores.texts import put

POSTGRES = "postgresql://me@host/runs"


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # where tests keep theirs is listed, too


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


def test_programs_and_the_command_line_keep_checkpoints_in_a_folder_here() -> None:
    keep("sqlite://", "made")

    assert (
        places.for_program("new") == places.for_program("made") == places.for_command_line() == "checkpoints"
    )


def test_a_session_that_the_program_has_begun_elsewhere_is_refused_with_both_ways_on(tmp_path: Path) -> None:
    there = str(tmp_path / "there")
    keep(there, "s", program="/srv/nightly.py")
    keep(there, "of-another", program="/srv/other.py")
    places.remember(there, "/srv/nightly.py")

    with pytest.raises(SessionElsewhere, match=f"Session s is in {there}") as refused:
        places.for_program("s", "/srv/nightly.py")

    assert refused.value.places == [there]
    assert f"--store {there}" in refused.value.hint
    assert "--here" in refused.value.hint
    assert places.for_program("s", "/srv/nightly.py", here=True) == "checkpoints"
    for session, program in (("s", "/srv/other.py"), ("s", ""), ("of-another", "/srv/nightly.py")):
        assert places.for_program(session, program) == "checkpoints"
    keep("checkpoints", "s")
    assert places.for_program("s", "/srv/nightly.py") == "checkpoints"


def test_nothing_is_kept_in_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")

    with pytest.raises(CheckpointError, match="The working folder is /") as refused:
        places.for_program(None)

    assert "GRAFLOW_CKPT_STORE" in refused.value.hint
    assert places.for_program(None, env={"GRAFLOW_CKPT_STORE": "/srv/a"}) == "/srv/a"


def test_to_look_makes_nothing() -> None:
    places.for_program("s", "/srv/nightly.py")

    assert places.others("checkpoints") == ()
    assert list(Path().iterdir()) == []


def test_other_places_are_all_that_were_used_and_are_still_there(tmp_path: Path) -> None:
    there, gone, here = str(tmp_path / "there"), str(tmp_path / "gone"), str(tmp_path / "checkpoints")
    keep("sqlite://", "made")
    keep(there, "s")
    keep("checkpoints", "here")
    for place in (there, gone, here, there):
        places.remember(place, "/srv/nightly.py")

    own = folder_of(own_file())
    assert places.others("checkpoints") == (there, own)
    assert places.others(there) == ()
    assert places.others("checkpoints", {"GRAFLOW_CKPT_STORE": "checkpoints"}) == ()
    assert [places.goes_without_saying(place) for place in ("checkpoints", here, own, there)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_list_that_is_damaged_or_gone_costs_hints_alone(tmp_path: Path) -> None:
    there = str(tmp_path / "there")
    keep(there, "s")
    file = Path(own_file()).parent / "places"
    file.parent.mkdir(parents=True)
    file.write_bytes(b'\xff\n["/a"]\n[1, 2]\n"' + b"[" * 100_000 + b'\n["unfinished')

    assert places.others("checkpoints") == ()
    places.remember(there, "/srv/nightly.py", {})  # behind a line that was cut off
    places.remember(there, "/srv/nightly.py")

    assert places.others("checkpoints") == (there,)
    file.unlink()
    file.mkdir()
    places.remember(there, "/srv/nightly.py")
    assert places.others("checkpoints") == ()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_list_is_never_written_into_another_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, where = tmp_path / "mine.txt", tmp_path / "data" / "graflow_ckpt" / "places"
    mine.write_text("mine")
    where.parent.mkdir(parents=True)
    where.symlink_to(mine) if kind == "link" else os.mkfifo(where)

    places.remember("sqlite:///x.db", "program")
    assert places.others("checkpoints") == ()

    where.unlink()
    monkeypatch.setattr(places, "_LONGEST", 300)
    keep("sqlite:///x.db", "s")
    places.remember("sqlite:///x.db", "program" * 50)
    draft = where.with_name(f"places.{os.getpid()}")  # a name that can be guessed
    draft.symlink_to(mine) if kind == "link" else os.mkfifo(draft)
    places.remember("sqlite:///x.db", "other program")

    assert mine.read_text() == "mine"
    assert where.is_file()
    assert not where.is_symlink()
    assert len(places.others("checkpoints")) == 1


def test_what_ends_with_the_process_or_the_temporary_files_is_not_listed(tmp_path: Path) -> None:
    for place in (
        "memory:",
        "/dev/shm/runs",
        str(tmp_path / "tmp" / "there"),
        f"sqlite:///{tmp_path}/tmp/a.db",
    ):
        places.remember(place, "/srv/nightly.py")

    assert not (Path(own_file()).parent / "places").exists()


def test_a_long_list_keeps_the_places_that_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_LONGEST", 1000)
    (tmp_path / "there").mkdir()
    places.remember(str(tmp_path / "there"), "/srv/nightly.py")
    for number in range(100):
        places.remember(str(tmp_path / f"gone-{number}"), "/srv/nightly.py")

    assert (Path(own_file()).parent / "places").stat().st_size < 2000
    assert places.others("checkpoints") == (str(tmp_path / "there"),)


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
        places.path_at(storage, open_store("checkpoints"), AUTO, path)
