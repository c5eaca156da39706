"""Saves, prunes and copies that are killed at every step, on every kind of store: what is there is whole,
old or new, the same command ends it, and nothing is left that nobody refers to.

Steps are counted, so that nothing here is a matter of luck. To save time only some of them are taken,
others with each operation; `KILLS=all pytest tests/crash/test_killed_anywhere.py` takes them all.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, KeepLast
from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.copying import Move, Moved
from graflow_ckpt.checkpoint.values.contents import shares
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import parse
from graflow_ckpt.stores.drivers.postgres.schema import Schema, migrations
from graflow_ckpt.stores.drivers.sqlite import file as sqlite_file
from tests.crash.doomed import NAMES, REFUSED, SESSION, Doomed, saved
from tests.crash.ways import FAR, Way, far, fill, own_name, parts, whole
from tests.golden import layouts, make
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.care.test_copying import replayed
from tests.unit.stores.drivers.test_postgres_schema import things

pytestmark = pytest.mark.crash

EVERY = 13  # of the steps, one; odd, so that requests and answers have their turns


def test_a_save_that_is_killed_leaves_the_old_one_or_the_new_one_whole(way: Way) -> None:
    def begin(at: int) -> int:
        return way.saved_by_an_owner(dict.fromkeys(NAMES, 1))

    seen: list[list[int]] = []
    for epoch in way.deaths("save", EVERY, begin, sequence=2):
        found = whole(way.store)
        seen.append([found[name] for name in NAMES])
        way.owned_anew(after=epoch)
        assert whole(way.store) == found
        way.emptied()

    assert seen[0] == [1, 1]
    assert seen[-1] == [2, 2]
    assert all(one in ([1, 1], [2, 1], [2, 2]) for one in seen)


def test_a_prune_that_is_killed_has_taken_the_oldest_and_the_next_one_ends_it(way: Way) -> None:
    def begin(at: int) -> int:
        return way.saved_by_an_owner({own_name(number): number for number in (1, 2, 3, 4)})

    way.saved_by_an_owner({own_name(4): 4})
    alone = len(way.pieces())
    counts: list[int] = []
    for _ in way.deaths("prune", EVERY, begin):
        left = sorted(whole(way.store).values())
        counts.append(len(left))
        assert left == list(range(left[0], 5))
        way.owned_anew()
        done = CheckpointManager.prune(KeepLast(1), store=way.url)
        assert not done.failed
        assert whole(way.store) == {own_name(4): 4}
        assert len(way.pieces()) == alone

    assert (counts[0], counts[-1]) == (4, 1)


@pytest.mark.parametrize(("session", "cause"), [(None, "rewind"), ("other", "fork")])
def test_an_adopted_checkpoint_is_there_as_a_whole_or_not_at_all(
    way: Way, session: str | None, cause: str
) -> None:
    """After a kill at any step the same command ends it, and the session stands where it was to stand."""

    def begin(at: int) -> dict[str, int]:
        way.saved_by_an_owner({own_name(number): number for number in (1, 2, 3)})
        return whole(way.store)

    order = {"session": session, "name": own_name(1)}
    seen = set[int]()
    for before in way.deaths("adopt", EVERY, begin, **order):
        new = {name: number for name, number in whole(way.store).items() if name not in before}
        seen.add(len(new))
        assert before.items() <= whole(way.store).items()
        assert list(new.values()) in ([], [1 if session else 4])
        if not new:
            assert way.uninterrupted("adopt", **order) == 0
        path, found = next(iter(history.newest(way.store, trios.RING, session or SESSION)))
        assert isinstance(found, archive.Found), path
        assert (found.meta["cause"], found.meta["steps"]) == (cause, 1)
        way.owned_anew()
        if session:
            way.store.acquire(session).release()
        way.emptied()

    assert seen == {0, 1}


def test_nothing_is_left_of_what_was_being_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner of the session clears away what a dead one has left half deleted."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    store = open_store(tmp_path)
    stocked.line(store, "s", 3)
    target = tmp_path / "session_s_step_1_17-1"
    # as a kill leaves it after the first of the renames
    target.with_suffix(".meta.json").rename(tmp_path / "session_s_step_1_17-1.deleted.meta.json.tmp")

    assert [cut.sequence for cut in CheckpointManager.prune(KeepLast(1), store=str(tmp_path)).cuts] == [2]
    store.acquire("s").release()

    names = {path.name.partition(".")[0] for path in tmp_path.iterdir() if path.name.startswith("session_")}
    assert names == {"session_s_step_3_17-3"}


@pytest.fixture
def filled(way: Way, tmp_path: Path) -> CheckpointStore:
    """Another store with checkpoints, and a journal after the newest. It shares if the first one does."""
    folder = open_store(f"sqlite:///{tmp_path}/other.db" if shares(way.store) else f"file://{tmp_path}/other")
    fill(folder)
    return folder


def test_a_copy_to_it_that_is_killed_leaves_whole_ones_and_is_ended_by_the_next(
    way: Way, filled: CheckpointStore
) -> None:
    steps: list[int] = []
    for _ in way.deaths("copy", EVERY, steps.append, origin=filled.url):
        found = whole(way.store)
        assert found.items() <= whole(filled).items()
        moved = copied(filled, way.store)
        assert sum(cut.state == "there" for cut in moved.cuts) >= len(found)
        assert parts(way.store) == parts(filled)
        assert replayed(way.store, trios.RING) == [2, 3]
        way.owned_anew()  # in a folder, what is emptied begins with epoch 1 again
        way.emptied()

    assert steps[-1] > EVERY


def test_a_copy_from_it_that_is_killed_changes_nothing_there_and_is_ended_by_the_next(
    way: Way, tmp_path: Path
) -> None:
    fill(way.store)
    before, pieces = parts(way.store), way.pieces()
    status = -1
    for at in way.steps(EVERY):
        url = f"sqlite:///{tmp_path}/to-{at}.db" if shares(way.store) else f"file://{tmp_path}/to-{at}"
        target = open_store(url)

        status = way.killed("copy", at, origin=way.far, store=url)

        assert (parts(way.store), way.pieces(), way.store.owner(SESSION)) == (before, pieces, None)
        assert whole(target).items() <= whole(way.store).items()
        copied(way.store, target)
        assert parts(target) == before
        assert replayed(target, trios.RING) == [2, 3]
        if status == 0:
            break

    assert at > EVERY


# --- servers that are killed in the middle of a copy and of a prune, and come back ------


ANSWER, REQUEST = 4, 7  # one that is not heard, and one that is not carried out


@pytest.fixture(params=FAR)
def server_way(request: pytest.FixtureRequest, way_to: Callable[[str], Way]) -> Way:
    return way_to(request.param)


def copied(origin: CheckpointStore, target: CheckpointStore) -> Moved:
    moved = Move(origin, target, trios.RING, trios.RING).session(SESSION)
    assert moved.error is None
    assert {cut.state for cut in moved.cuts} <= {"copied", "there"}
    return moved


def test_a_copy_whose_target_is_killed_is_ended_when_it_is_back(server_way: Way, tmp_path: Path) -> None:
    origin = open_store(f"file://{tmp_path}/origin")
    fill(origin)

    assert server_way.without_server("copy", REQUEST, origin=origin.url) == REFUSED

    assert whole(server_way.store).items() <= whole(origin).items()
    copied(origin, server_way.store)
    assert parts(server_way.store) == parts(origin)
    assert replayed(server_way.store, trios.RING) == [2, 3]
    server_way.owned_anew(after=1)
    server_way.emptied()


def test_a_copy_whose_origin_is_killed_is_ended_when_it_is_back(server_way: Way, tmp_path: Path) -> None:
    fill(server_way.store)
    before = parts(server_way.store)
    target = open_store(f"sqlite:///{tmp_path}/target.db")

    assert server_way.without_server("copy", ANSWER, origin=server_way.far, store=target.url) == REFUSED

    assert parts(server_way.store) == before
    assert whole(target).items() <= whole(server_way.store).items()
    copied(server_way.store, target)
    assert whole(target) == whole(server_way.store)
    assert replayed(target, trios.RING) == [2, 3]


def test_a_prune_whose_server_is_killed_is_ended_by_the_next_one(server_way: Way) -> None:
    for number in range(1, 5):
        saved(server_way.store, own_name(number), number)

    assert server_way.without_server("prune", ANSWER) == REFUSED

    left = sorted(whole(server_way.store).values())
    assert left == list(range(left[0], 5))
    assert not CheckpointManager.prune(KeepLast(1), store=server_way.url).failed
    assert whole(server_way.store) == {own_name(4): 4}
    server_way.owned_anew()
    server_way.emptied()


@pytest.mark.parametrize("role", ["save", "copy"])
def test_a_server_that_is_killed_and_back_at_once_interrupts_by_name_or_not_at_all(
    server_way: Way, tmp_path: Path, role: str
) -> None:
    url = f"file://{tmp_path}/origin"
    fill(open_store(url))
    order = {"origin": url, "sequence": 2}

    status = server_way.with_server_restarted(role, REQUEST, **order)

    assert status == 0 if server_way.kind == "postgres" else status in (0, REFUSED)
    if status == REFUSED:
        assert server_way.uninterrupted(role, **order) == 0
    assert whole(server_way.store).keys() >= set(NAMES)
    assert role == "save" or parts(server_way.store) == parts(open_store(url))
    server_way.owned_anew()
    server_way.emptied()


# --- upgrades that are killed at every step ---------------------------------------------


LAYOUT = Path(__file__).parents[1] / "golden" / "layout-1" / "sqlite.sql"
EVERY_MESSAGE = 11  # of the messages of a migration, one; a step has more


def tables(file: Path) -> tuple[int, list[tuple[str, str]]]:
    """The version of a SQLite database, and how all that is in it was made."""
    with closing(sqlite3.connect(file)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        asked = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        return version, connection.execute(asked).fetchall()


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The golden session in a database of the first version."""
    file = tmp_path / "former.db"
    layouts.load("sqlite", f"sqlite:///{file}", None, LAYOUT.read_text())
    return file


@pytest.mark.parametrize("begins", ["with version 1", "with nothing"])
def test_a_sqlite_database_whose_upgrade_is_killed_has_the_one_version_or_the_other(
    begins: str, former: Path, tmp_path: Path, doomed: Doomed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    versions: list[int] = []
    for at in count(1, 2):
        file = tmp_path / f"{at}.db"
        if begins == "with version 1":
            shutil.copyfile(former, file)
        doomed.told("open", at, "sqlite", store=f"sqlite:///{file}")
        doomed.begins()
        status = doomed.ended()

        version, made = tables(file)
        versions.append(version)
        if begins == "with version 1" and version == 1:
            assert (version, made) == tables(former)
        elif version == 0:
            assert made == []
        store = open_store(f"sqlite:///{file}")
        store.probe()
        assert tables(file) == tables_of_a_new_one(tmp_path)
        if begins == "with version 1":
            ((path, found),) = history.newest(store, Keyring.load(), "golden")
            assert isinstance(found, archive.Found), path
            lease = store.acquire("golden")
            assert lease.epoch > 4
            lease.release()
        if status == 0:
            break
        assert status == -signal.SIGKILL

    assert (versions[0], versions[-1]) == (1 if "1" in begins else 0, sqlite_file.VERSION)
    assert len(versions) > (10 if versions[0] < sqlite_file.VERSION else 2)


def tables_of_a_new_one(folder: Path) -> tuple[int, list[tuple[str, str]]]:
    file = folder / "new.db"
    if not file.exists():
        open_store(f"sqlite:///{file}").probe()
    return tables(file)


@pytest.fixture
def migrated_way(postgres_server: PostgresServer, doomed: Doomed) -> Iterator[Way]:
    """To a database without tables."""
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        yield far("postgres", postgres_server, postgres_server.database(), proxy, doomed)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_postgres_database_whose_migration_is_killed_has_taken_whole_steps(
    direction: str, migrated_way: Way, postgres_server: PostgresServer
) -> None:
    link = Link(parse(migrated_way.url))
    schema, newest = Schema(link), len(migrations())
    states = [things(postgres_server, migrated_way.url)]
    for step in migrations():
        schema.upgrade(step.version)
        states.append(things(postgres_server, migrated_way.url))
    begin, end = (0, newest) if direction == "up" else (newest, 0)
    versions: list[int] = []

    for _ in migrated_way.deaths("migrate", EVERY_MESSAGE, lambda _: moved(schema, begin), to=end):
        versions.append(schema.status().version)
        assert things(postgres_server, migrated_way.url) == states[versions[-1]]
        moved(schema, end)
        assert things(postgres_server, migrated_way.url) == states[end]

    link.close()
    assert (versions[0], versions[-1]) == (begin, end)
    assert set(versions) == set(range(newest + 1))


def moved(schema: Schema, to: int) -> None:
    if schema.status().version < to:
        schema.upgrade(to)
    else:
        schema.downgrade(to)
