"""Which store a URL, a path or the environment asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, SessionElsewhere
from graflow_ckpt.stores import home_of, open_store, open_store_of, places, store_of
from graflow_ckpt.stores.drivers.sqlite.names import folder_of, own_file
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.prefixes import WRAPPERS, Layer, begins_like_one, divided, prefix_of, unwrapped
from tests.unit.stores.programs import printed
from tests.unit.stores.texts import put


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    for where in (str(tmp_path), tmp_path, f"file://{tmp_path}", f"FILE://{tmp_path}"):
        store = open_store(where)

        assert isinstance(store, LocalStore)
        assert store.url == f"file://{tmp_path}"


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("REDISS://u:p@h", "rediss://h:6379/0"),
        ("redis+sentinel://a,b/main/1", "redis+sentinel://a:26379,b:26379/main/1"),
        ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ("gcs://bucket", "gs://bucket"),
        ("az://container/x", "az://container/x"),
    ],
)
def test_a_server_is_a_store_that_is_not_asked_before_it_is_used(where: str, url: str) -> None:
    store = open_store(where)

    assert (store.url, store.folder, store.shared) == (url, url, True)


@pytest.mark.parametrize(
    ("package", "where", "extra"),
    [
        ("redis", "redis://h:1/0", "fleet"),
        ("obstore", "s3://bucket", "objects"),
        ("psycopg", "postgresql://h/d", "postgres"),
        ("cryptography", "encrypted+memory:", "encryption"),
        ("zstandard", "compressed+memory:", "compression"),
    ],
)
def test_a_store_without_its_package_names_the_extra(package: str, where: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from graflow_ckpt.stores import open_store, store_of
open_store("checkpoints")
store_of("postgresql://h/d/best")
try:
    open_store({where!r})
except ImportError as error:
    print(error.extra, error)
"""
    (said,) = printed(program)

    assert said.startswith(f"{extra} ")
    assert f"graflow-ckpt[{extra}]" in said


@pytest.mark.parametrize(
    ("path", "store"),
    [
        ("best.pkl", "."),
        ("checkpoints/best.pkl", "checkpoints"),
        ("redis://u:p@h:1/2/best", "redis://u:p@h:1/2"),
        ("redis://best", "redis://e:9/3"),
        ("redis://*", "redis://e:9/3"),
        ("s3://bucket/best", "s3://bucket"),
        ("s3://bucket/a/b/best.pkl?region=eu", "s3://bucket/a/b?region=eu"),
    ],
)
def test_a_path_leads_to_its_store(path: str, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", "redis://e:9/3")

    assert store_of(path) == store


def test_a_name_alone_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAFLOW_CKPT_REDIS_URL", raising=False)

    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_REDIS_URL"):
        open_store_of("redis://best")


def test_the_home_of_a_session_is_taken_where_it_can_be_had(tmp_path: Path) -> None:
    assert home_of(f"file://{tmp_path}") == str(tmp_path)
    assert home_of("redis://h:1/0") == "redis://h:1/0"
    assert home_of(f"{tmp_path}/gone") is None
    assert home_of("") is None


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"ftp://.*file://"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("where", ["", "file://"])
def test_no_place_at_all_is_not_the_root_folder(where: str) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        open_store(where)


@pytest.mark.parametrize("where", ["encryptd+/srv/runs", "metred+memory:"])
def test_a_wrapper_that_is_mistyped_is_no_folder(where: str) -> None:
    with pytest.raises(CheckpointError, match=r"is called \w+\+\. There is: .*encrypted\+"):
        open_store(where)

    assert open_store(f"./{where}").url.startswith("file:///")


@pytest.mark.parametrize("where", ["c++runs", "a+b", "1+/runs"])
def test_a_plus_in_the_name_of_a_folder_is_one(where: str, tmp_path: Path) -> None:
    assert open_store(where).url.endswith(where)


@pytest.mark.parametrize("where", ["~", "~/runs", "sqlite:///~/runs.db", "encrypted+file://~/runs"])
def test_no_folder_is_called_like_a_home(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    with pytest.raises(CheckpointError, match="/home/me") as refused:
        open_store(where)

    assert "~" not in refused.value.hint


# --- prefixes ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("plain", "other"):
        monkeypatch.setitem(WRAPPERS, word, ("tests.unit.stores.wrappers", word.capitalize()))


@pytest.mark.parametrize(
    ("text", "layers", "rest"),
    [
        ("plain+sqlite:///runs.db", (Layer("plain"),), "sqlite:///runs.db"),
        ("plain+other+s3://b/p", (Layer("plain"), Layer("other")), "s3://b/p"),
        ("PLAIN+memory:", (Layer("plain"),), "memory:"),
        ("plain.a%2Bb+redis+sentinel://h", (Layer("plain", "a+b"),), "redis+sentinel://h"),
        ("redis+sentinel://h", (), "redis+sentinel://h"),
        ("nosuch+plain+sqlite:///x", (), "nosuch+plain+sqlite:///x"),
        ("plain+runs/x.pkl", (), "plain+runs/x.pkl"),
        ("/srv/plain+memory:", (), "/srv/plain+memory:"),
    ],
)
def test_the_words_before_an_address_are_taken_apart(text: str, layers: tuple[Layer, ...], rest: str) -> None:
    assert divided(text) == (layers, rest)
    assert unwrapped(text) == rest


def test_a_prefix_that_is_written_is_read_as_the_same() -> None:
    written = str(Layer("plain", "a+b/ü:")) + str(Layer("other"))

    assert divided(f"{written}memory:")[0] == (Layer("plain", "a+b/ü:"), Layer("other"))
    assert prefix_of(f"{written}memory:") == written


def test_the_outermost_wrapper_is_named_first() -> None:
    store = open_store("plain.x+other+memory://prefixes")

    assert store.url == "plain.x+other+memory://prefixes"
    assert store.folder == store.url
    assert type(store).__name__ == "Plain"


def test_a_path_leads_to_its_wrapped_store() -> None:
    assert store_of("plain+memory://prefixes/best.pkl") == "plain+memory://prefixes"
    assert store_of("plain+file:///srv/runs/best.pkl") == "plain+file:///srv/runs"
    assert store_of("plain+other+sqlite:////srv/runs.db/best") == "plain+other+sqlite:////srv/runs.db"
    assert store_of("plain+best.pkl") == "."


def test_a_home_is_there_if_what_is_wrapped_is(tmp_path: object) -> None:
    assert home_of(f"plain+file://{tmp_path}") == f"plain+file://{tmp_path}"
    assert home_of(f"plain+file://{tmp_path}/nowhere") is None


@pytest.mark.parametrize("text", ["plain+checkpoints", "plain+other+/srv/runs", "plain.x+"])
def test_a_folder_that_begins_with_a_word_is_refused_as_a_store(text: str) -> None:
    assert begins_like_one(text)

    with pytest.raises(CheckpointError, match="no address") as refused:
        open_store(text)

    assert "file:///" in refused.value.hint


def test_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"nosuch\+memory"):
        open_store("nosuch+memory://x")


def test_an_argument_is_refused_where_there_is_none() -> None:
    with pytest.raises(CheckpointError, match="behind a dot") as refused:
        open_store("other.x+memory://y")

    assert "other+memory://y" in refused.value.hint


# --- where nobody has said where ------------------------------------------------------


POSTGRES = "postgresql://me@host/runs"


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """What is in memory is no place that is listed."""
    return on_disk


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
        f"encrypted+file://{tmp_path}/tmp/there",
        f"retry+sqlite:///{tmp_path}/tmp/a.db",
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
