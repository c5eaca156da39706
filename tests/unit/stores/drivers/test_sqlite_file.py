"""The database file: how it is made, shared, and what is said when it cannot be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.stores.drivers.sqlite import file as sqlite_file
from graflow_ckpt.stores.drivers.sqlite.file import Database, refusal
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.testing.drivers import at_once
from tests.measured import unmeasured
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import own_name, put, read


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "x.db", patience=0.2)
    yield store
    store.close()


# --- made and shared -------------------------------------------------------------------


def test_it_is_in_wal_mode_and_syncs_every_commit(store: SqliteStore) -> None:
    store.probe()
    database = Database(store.file)

    with database.writing() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    with database.writing(easy=True) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
    with database.writing() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_commit_that_may_come_back_after_a_power_cut_is_overwritten_in_the_log(store: SqliteStore) -> None:
    put(store, own_name("s", 1), "one")
    log = Path(f"{store.file}-wal")
    before = log.read_bytes()
    unconfirmed = sqlite3.OperationalError("disk I/O error")
    unconfirmed.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    with pytest.raises(errors.GraflowError), Database(store.file).writing():
        raise unconfirmed

    assert log.read_bytes() != before


def test_processes_that_make_it_at_once_make_one(store: SqliteStore) -> None:
    program = f"""
import sys
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import put
sys.stdin.read(1)
put(SqliteStore({store.file!r}), sys.argv[1], "one")
"""
    processes = [subprocess.Popen(command(program, n), cwd=ROOT, stdin=PIPE, stderr=PIPE) for n in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"!")
        process.stdin.flush()
    said = [process.communicate()[1] for process in processes]

    assert said == [b""] * 6
    assert sorted(path.rpartition("/")[2] for path, _ in store.list()) == list("012345")


@pytest.mark.parametrize("left", ["empty", "wal", "tables"])
def test_a_database_whose_maker_died_is_made_by_the_next_one(store: SqliteStore, left: str) -> None:
    Path(store.file).touch()
    if left != "empty":
        with closing(sqlite3.connect(store.file, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            if left == "tables":
                connection.execute("BEGIN IMMEDIATE")
                sqlite_file.upgrade(connection)
                connection.execute("ROLLBACK")
    assert (list(store.list()), store.owner("s")) == ([], None)

    path = put(store, "best", "one")

    assert read(store, path)[0] == "one"


def test_a_database_of_another_program_is_not_touched(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.file)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = Path(store.file).read_bytes()

    for call in (store.probe, lambda: list(store.list()), lambda: store.acquire("s")):
        with pytest.raises(errors.CheckpointError, match=r"x.db cannot be used.*another program"):
            call()

    assert Path(store.file).read_bytes() == before


def test_a_link_to_a_file_that_is_no_database_is_not_followed(store: SqliteStore, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.touch()
    Path(store.file).symlink_to(other)

    for call in (store.probe, lambda: store.acquire("s")):
        with pytest.raises(
            errors.CheckpointError, match=r"x.db cannot be used as a store: It is a symbolic link"
        ):
            call()

    assert other.read_bytes() == b""


def test_a_link_to_a_database_is_followed(store: SqliteStore, tmp_path: Path) -> None:
    put(SqliteStore(tmp_path / "real.db"), "best", "one")
    Path(store.file).symlink_to(tmp_path / "real.db")

    put(store, "second", "two")

    assert {os.path.basename(path) for path, _ in store.list()} == {"best", "second"}
    assert Path(store.file).is_symlink()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "a pipe"])
def test_what_is_no_regular_file_is_refused(device: str, store: SqliteStore) -> None:
    Path(store.file).symlink_to(device) if device.startswith("/") else os.mkfifo(store.file)

    for call in (store.probe, lambda: list(store.list()), lambda: store.acquire("s")):
        with pytest.raises(errors.CheckpointError, match=r"x.db is not a regular file"):
            call()


def test_a_database_of_a_later_version_is_not_touched(store: SqliteStore) -> None:
    put(store, "best", "one")
    store.close()
    with closing(sqlite3.connect(store.file)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {sqlite_file.VERSION + 1}")

    for call in (store.probe, lambda: list(store.list())):
        with pytest.raises(errors.SchemaUnsupported, match="later version"):
            call()


def test_a_database_of_an_earlier_version_is_brought_to_this_one_whole_or_not_at_all(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "best", "one")
    store.close()
    step = "CREATE TABLE more (x INTEGER) STRICT; CREATE INDEX more_x ON more (x)"
    monkeypatch.setattr(sqlite_file, "VERSION", sqlite_file.VERSION + 1)
    monkeypatch.setattr(sqlite_file, "_STEPS", (*sqlite_file._STEPS, f"{step}; CREATE TABLE more (x)"))
    with pytest.raises(errors.CheckpointError, match="already exists"):
        store.probe()
    monkeypatch.setattr(sqlite_file, "_STEPS", (*sqlite_file._STEPS[:-1], step))

    at_once([SqliteStore(store.url).probe for _ in range(4)])

    assert read(store, f"{store.folder}/best")[0] == "one"
    with closing(sqlite3.connect(store.file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (sqlite_file.VERSION,)
        assert connection.execute("SELECT count(*) FROM more").fetchone() == (0,)


def test_connections_are_closed_with_their_store(tmp_path: Path) -> None:
    """The last one to be closed takes the log away."""
    store = SqliteStore(tmp_path / "x.db")
    put(store, "best", "one")
    list(store.list())
    assert len(os.listdir(tmp_path)) == 3

    del store

    assert os.listdir(tmp_path) == ["x.db"]


# --- locked ----------------------------------------------------------------------------


def test_who_keeps_it_locked_is_waited_for_and_then_told_of(store: SqliteStore) -> None:
    path = put(store, "best", "one")
    with closing(sqlite3.connect(store.file, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")

        for call in (store.probe, lambda: put(store, "best", "two"), lambda: store.delete("best")):
            with pytest.raises(errors.CheckpointError, match=r"kept it locked all the time.*End it"):
                call()
        assert read(store, path)[0] == "one"  # readers do not mind

    put(store, "best", "two")
    assert read(store, path)[0] == "two"


def test_a_writer_goes_on_as_soon_as_the_lock_is_free(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    store.probe()
    with closing(sqlite3.connect(store.file, isolation_level=None, check_same_thread=False)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, lambda: blocking.execute("COMMIT"))
        timer.start()

        path = put(store, "best", "one")

        timer.join()
    assert read(store, path)[0] == "one"


# --- read-only -------------------------------------------------------------------------

READER = """
import os, sys
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import put, read
import graflow_ckpt.stores.files.store
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
store = SqliteStore(sys.argv[1])
try:
    found = len(list(store.list())), len(store.newest(50)), store.owner("s")
    print(read(store, store.folder + "/best")[0], *found)
    print(store.acquire("s") if sys.argv[2] == "acquire" else put(store, "best", "two"))
except GraflowError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def shown() -> Iterator[Path]:
    """A folder that other users can look into."""
    folder = Path(f"/tmp/graflow-ckpt-shown-{os.getpid()}")
    folder.mkdir(mode=0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("what", ["acquire", "put"])
def test_where_nothing_can_be_written_checkpoints_are_read_and_saving_is_refused(
    shown: Path, what: str, log: bool
) -> None:
    store = SqliteStore(shown / "x.db")
    put(store, "best", "one")
    if not log:
        store.close()
    for path in shown.iterdir():
        path.chmod(0o444)
    shown.chmod(0o555)

    first, second, *_ = printed(READER, store.file, what, env=unmeasured())

    assert first == "one 1 1 None"
    assert second.startswith("CheckpointError Cannot write into")
    assert "read-only" in second


LOOKER = """
import os, sys
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
store = SqliteStore(sys.argv[1])
for line in sys.stdin:
    print(len(list(store.list())), flush=True)
"""


def test_what_others_write_is_seen_where_this_user_may_only_read(shown: Path) -> None:
    store = SqliteStore(shown / "x.db")
    put(store, "one", "1")
    store.close()
    (shown / "x.db").chmod(0o444)
    shown.chmod(0o555)
    looking = command(LOOKER, store.file)
    with subprocess.Popen(looking, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as looker:
        assert looker.stdin is not None
        assert looker.stdout is not None
        looker.stdin.write("look\n")
        assert looker.stdout.readline() == "1\n"
        shown.chmod(0o755)
        (shown / "x.db").chmod(0o644)

        put(store, "two", "2")
        store.close()

        assert looker.communicate("look\n")[0] == "2\n"


# --- damaged ---------------------------------------------------------------------------


def damage(file: str, offset: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(data)


@pytest.mark.parametrize("content", [b"not a database at all" * 300, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_file_that_is_no_database_is_told_as_damage(store: SqliteStore, content: bytes) -> None:
    Path(store.file).write_bytes(content)

    for call in (store.probe, lambda: list(store.list()), lambda: store.meta("best")):
        with pytest.raises(errors.CheckpointCorrupt, match=r"x.db.*backup"):
            call()

    assert Path(store.file).read_bytes() == content


def test_pages_that_were_overwritten_are_told_as_damage_or_found_by_the_digests_above(
    store: SqliteStore,
) -> None:
    for number in range(60):
        put(store, own_name(number), "x" * 50, size=40)
    store.close()
    whole = Path(store.file).read_bytes()
    told = 0

    for page in range(1, len(whole) // 4096):
        damage(store.file, page * 4096, b"\xa5" * 4096)
        listings = (lambda: list(store.list()), lambda: list(store.list("s")))
        for call in (*listings, lambda: store.meta(own_name(3))):
            try:
                call()
            except errors.CheckpointNotFound:
                pass  # its entry was on that page
            except errors.CheckpointCorrupt as error:
                told += 1
                assert "backup" in error.hint  # noqa: PT017  which call tells of it is not to be foreseen
        store.close()
        Path(store.file).write_bytes(whole)

    assert told > 10
    assert len(list(store.list())) == 60


def test_a_log_whose_end_is_torn_keeps_all_commits_before(store: SqliteStore, tmp_path: Path) -> None:
    put(store, "best", "one")
    put(store, "best", "two")
    size = os.path.getsize(f"{store.file}-wal")
    put(store, "best", "three")
    for cut in (1, 2000):
        copy = tmp_path / f"copy{cut}"
        copy.mkdir()
        for ending in ("", "-wal"):
            shutil.copy(store.file + ending, copy)
        os.truncate(copy / "x.db-wal", size + cut)

        found = SqliteStore(copy / "x.db")

        assert read(found, f"{found.folder}/best")[0] == "two"
        put(found, "best", "four")
        found.close()
        assert read(found, f"{found.folder}/best")[0] == "four"


# --- full ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 20, 30 << 20])
def test_a_full_disk_keeps_the_old_one_and_takes_the_next_when_there_is_room(
    tmp_path: Path, size: int
) -> None:
    program = """
import resource, sys
from graflow_ckpt.core.errors import CheckpointError, JournalFailed
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import put, read
store = SqliteStore(sys.argv[1])
lease = store.acquire("s")
path = put(store, "best", "1", lease)
segment = store.journal(lease, 0)
segment.append(b"one")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, -1))
try:
    put(store, "best", "2", lease, size=int(sys.argv[2]))
except CheckpointError as error:
    print(type(error).__name__, error)
try:
    segment.append(b"2" * 500_000)
except JournalFailed as error:
    print("journal", error)
assert read(store, path)[0] == "1"
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
put(store, "best", "3", lease, size=int(sys.argv[2]))
lease.release()
"""
    file = str(tmp_path / "x.db")

    save, append = printed(program, file, size, env=unmeasured())

    assert save.startswith(f"CheckpointError Cannot write into {file}")
    assert append.startswith("journal Cannot append to the journal of session 's'")
    store = SqliteStore(file)
    assert read(store, f"{store.folder}/best") == ("3", b"3" * size, b"3")
    assert list(store.segments("s")) == [(1, 0, b"one")]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_full_disk_is_told_as_that(store: SqliteStore) -> None:
    put(store, "best", "1")
    database = Database(store.file)
    with database.writing() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")

    full = pytest.raises(errors.CheckpointError, match=r"SQLITE_FULL.*free some space")
    with full, database.writing() as connection:
        connection.execute("INSERT INTO large (data) VALUES (zeroblob(1 << 20))")

    assert read(store, f"{store.folder}/best")[0] == "1"


def test_a_sync_that_fails_leaves_the_outcome_open() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"

    assert isinstance(refusal(error, "write into", "x.db"), errors.SaveOutcomeUnknown)


# --- forks ------------------------------------------------------------------------------


CLOSES = """
import os, subprocess, sys
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.trios import listed, put
store = SqliteStore(sys.argv[1])
put(store, "parent", "one")
told, tells = os.pipe(), os.pipe()
if not os.fork():
    put(store, "first", "one")
    os.write(told[1], b"1")
    os.read(tells[0], 1)
    put(store, "second", "one", size=300_000)
    os._exit(0)
os.read(told[0], 1)
store.close()
os.write(tells[1], b"1")
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(*listed(SqliteStore(sys.argv[1])))
"""

USES = """
import os, sys, threading
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.drivers.sqlite import file as sqlite_file
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.trios import listed, put
sqlite_file._GRACE = 0.01
store, began, ends = SqliteStore(sys.argv[1]), threading.Event(), threading.Event()
put(store, "parent", "one")

def use():
    with store._database.writing():
        began.set()
        ends.wait(20)

thread = threading.Thread(target=use)
thread.start()
began.wait(20)
if not os.fork():
    put(SqliteStore(sys.argv[1] + ".other"), "child", "one")
    try:
        put(store, "child", "one")
    except CheckpointError as error:
        os._exit(0 if "when it was forked" in str(error) else 2)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
ends.set()
thread.join()
put(store, "after", "one")
print(*listed(store))
"""


def test_what_a_forked_child_saves_is_there_when_its_parent_has_let_go(tmp_path: Path) -> None:
    assert printed(CLOSES, tmp_path / "x.db") == ["second first parent"]


def test_a_child_that_is_forked_while_a_thread_uses_the_file_is_refused_it_by_name(tmp_path: Path) -> None:
    assert printed(USES, tmp_path / "x.db") == ["0", "after parent"]
