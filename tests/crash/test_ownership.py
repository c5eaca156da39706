"""A few random histories for each run, and that their judges see what would be wrong.

Of two workers on every store; a thousand by `make histories`. Of a session in Redis whose server goes back; a
thousand by `make failovers`.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.core.protocols import Lease, Parts
from graflow_ckpt.sessions.redis import session as sessions
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files import ownership
from graflow_ckpt.stores.files import store as local
from graflow_ckpt.stores.files.ownership import LocalLease
from graflow_ckpt.stores.files.store import LocalStore
from tests.conformance.companion import Companion
from tests.conformance.contracts.journal import segments
from tests.crash import failovers
from tests.crash.crash_states import MODELS, Model, Note, RecordingDisk, Rename, Tree, crash_states
from tests.crash.histories import PLACES, Opener, run
from tests.crash.trio_scenarios import MEMORY, mutant_of, without_sync
from tests.trios import owning, put_own

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("place", PLACES)
def test_two_workers_at_random_end_in_one_line_of_epochs(place: str, tmp_path: Path) -> None:
    with PLACES[place](tmp_path) as (opener, step):
        found = run(opener, step, range(1, 5))

    assert found.wrong == []
    assert found.counts["done"] >= 12  # of the first owners alone
    assert found.counts["owner"] >= 4


class Unfenced(SqliteStore):
    """Asks nobody before it saves."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=None, stage=stage)


class Generous(SqliteStore):
    """Gives the session to everybody who asks."""

    def acquire(self, session: str, *, take_over: bool = False):  # type: ignore[no-untyped-def]
        lease = super().acquire(session, take_over=True)
        lease.epoch = 1
        return lease


@pytest.mark.parametrize(
    ("kind", "words"), [(Unfenced, "went through under"), (Generous, "epoch 1 was given out")]
)
def test_a_store_that_lets_two_write_is_convicted(kind: type, words: str, tmp_path: Path) -> None:
    opener: Opener = partial(kind, tmp_path / "store")

    found = run(opener, None, range(1, 40), until=lambda found: any(words in wrong for wrong in found.wrong))

    assert any(words in wrong for wrong in found.wrong), found


# --- servers that go back ----------------------------------------------------------------

BROKEN = {  # what is broken, how, and the seed to begin with: one history in tens knows of it, or in hundreds
    "a request follows anything": (
        "if not before or find(before, prev, 1, true) ~= 1 then",
        "if not before then",
        205,
    ),
    "what was read may be gone": ("if (version or '0') ~= sub(base, 2) then", "if false then", 40),
    "a request from outside follows anything": ("if (last or '') ~= prev then return {'lost'} end", "", 32),
}


def test_however_servers_go_back_a_session_is_of_one_history() -> None:
    found = failovers.run(range(1, 1 + max(10, settings().max_examples // 5)))

    assert found.wrong == []
    assert found.counts["failover replica"] > 0
    assert found.counts["failover snapshot"] > 0
    assert found.counts["lost"] > 0


@pytest.mark.parametrize("name", BROKEN)
def test_two_histories_in_one_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, first = BROKEN[name]
    assert sessions.STEP.count(old) == 1, "it is to be broken in one place"
    monkeypatch.setattr(sessions, "STEP", sessions.STEP.replace(old, new))

    found = failovers.run(range(first, first + 200), until=lambda found: bool(found.wrong))

    assert found.wrong


# --- who owns a session, decided between real processes that die and race, and after power cuts ---


ROUNDS = 50


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


def races(folder: str, rounds: str) -> None:
    """Again and again an owner dies, and two who waited for that go for its session at once."""
    for _ in range(int(rounds)):
        died = die_as_owner(folder)
        gate, open_gate = os.pipe()
        done, finish = os.pipe()
        results, result = os.pipe()

        def contend(gate: int = gate, done: int = done, result: int = result, also: int = finish) -> None:
            os.close(also)
            os.read(gate, 1)
            kept: list[Lease] = []
            try:
                kept.append(LocalStore(folder).acquire("s"))
                taken = kept[0].taken_from
                os.write(result, f"won {kept[0].epoch} {taken.pid if taken else 0}\n".encode())
            except SessionBusy as busy:
                os.write(result, f"busy {busy.owner.pid if busy.owner else 0} 0\n".encode())
            os.read(done, 1)  # the winner keeps it until both have spoken

        pids = [forked(contend), forked(contend)]
        os.write(open_gate, b"..")
        said = b""
        while said.count(b"\n") < 2:
            said += os.read(results, 100)
        os.close(finish)
        for pid in pids:
            os.waitpid(pid, 0)
        for fd in (gate, open_gate, done, results, result):
            os.close(fd)
        words = [line.split() for line in said.decode().splitlines()]
        found = {
            "won": [int(epoch) for what, epoch, _ in words if what == "won"],
            "taken_from_the_dead": [int(pid) == died for what, _, pid in words if what == "won"],
            "busy_with_the_winner": [int(pid) in pids for what, pid, _ in words if what == "busy"],
        }
        print(json.dumps(found), flush=True)


def die_as_owner(folder: str) -> int:
    ready, tell = os.pipe()

    def own() -> None:
        lease = LocalStore(folder).acquire("s")
        os.write(tell, b".")
        signal.pause()
        lease.release()

    pid = forked(own)
    os.read(ready, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)
    return pid


def test_of_two_who_race_for_a_dead_session_exactly_one_wins(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.test_ownership", str(tmp_path), str(ROUNDS)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rounds = [json.loads(line) for line in told.splitlines()]

    assert len(rounds) == ROUNDS
    assert all(len(found["won"]) == 1 for found in rounds)
    assert all(found["taken_from_the_dead"] == [True] for found in rounds)
    assert all(found["busy_with_the_winner"] == [True] for found in rounds)
    epochs = [found["won"][0] for found in rounds]
    assert epochs == sorted(set(epochs))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.lock", ".s.owner"]


def test_an_owner_whose_lock_file_was_removed_while_it_was_stopped_writes_nothing(tmp_path: Path) -> None:
    with Companion(partial(LocalStore, tmp_path), "own") as other:
        epoch = other.hear()
        other.stop()
        (tmp_path / ".s.lock").unlink()
        store = LocalStore(tmp_path)
        with owning(store) as lease:
            assert lease.epoch > epoch
            before = list(store.list()), segments(store)

            other.wake()
            other.say()

            assert set(other.hear()) == {"fenced"}
            assert other.wait() == 0
            assert (list(store.list()), segments(store)) == before
            assert segments(store) == [(epoch, 0, b"in time;")]
            assert not list(tmp_path.glob("*.tmp"))
            lease.check()
            put_own(store, lease, 2)


# --- power cuts during a claim -----------------------------------------------------------


class Life:
    """What happens to one session; each promise is the last epoch given out."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.disk = RecordingDisk(root)
        self.store = LocalStore(f"{root}/c", disk=self.disk)

    def claim(self) -> LocalLease:
        lease = self.store.acquire("s")
        self.disk.promise(lease.epoch)
        return lease

    def claim_and_die(self) -> None:
        """Killed after the record was written and before it was renamed."""
        with self.disk.dying(lambda call, _: isinstance(call, Rename)):
            self.claim()

    def save(self, lease: LocalLease, sequence: int) -> None:
        put_own(self.store, lease, sequence)


def first(life: Life) -> None:
    life.save(life.claim(), 1)


def again_and_again(life: Life) -> None:
    for sequence in (1, 2):
        lease = life.claim()
        life.save(lease, sequence)
        lease.release()


def after_a_death_in_the_claim(life: Life) -> None:
    life.claim().release()
    life.claim_and_die()
    life.save(life.claim(), 1)


def with_a_journal(life: Life) -> None:
    lease = life.claim()
    life.store.journal(lease, 0).append(b"frame")
    lease.release()
    life.claim().release()


LIVES = [first, again_and_again, after_a_death_in_the_claim, with_a_journal]


def judge(live: Callable[[Life], None], model: Model, *, first: bool = False) -> tuple[int, int]:
    """(states, bad ones); `first`: up to the first bad one."""
    with TemporaryDirectory(dir=MEMORY) as root:
        life = Life(root)
        life.store.probe()
        before = Tree.of(root)
        life.disk.calls.clear()
        live(life)
    assert any(isinstance(call, Note) for call in life.disk.calls)
    states = bad = 0
    for promised, tree in crash_states(before, life.disk.calls, model):
        states += 1
        bad += not holds(promised if isinstance(promised, int) else 0, tree)
        if first and bad:
            break
    return states, bad


def holds(promised: int, tree: Tree) -> bool:
    with TemporaryDirectory(dir=MEMORY) as root:
        tree.lay_out(root)
        folder = Path(root, "c")
        record = folder / ".s.owner"
        if record.exists() and not record.read_bytes().endswith(b"}"):
            return False  # a torn record
        store = LocalStore(folder)
        written = [int(name[1]) for path in folder.iterdir() if (name := _JOURNAL.match(path.name))]
        written += [int(found[1]) for _, raw in store.list("s") if (found := _EPOCH.search(raw))]
        lease = store.acquire("s")
        lease.release()
        return lease.epoch > max([promised, *written])


_JOURNAL = re.compile(r"\.s\.(\d+)\.\d+\.journal\Z")
_EPOCH = re.compile(rb'"epoch": ?(\d+)')


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("live", LIVES)
def test_an_epoch_that_was_given_out_is_never_given_out_again(
    live: Callable[[Life], None], model: Model
) -> None:
    states, bad = judge(live, model)

    print(f"\n{live.__name__:30} {model} {bad}/{states}")
    assert states > 5
    assert bad == 0


# --- mutants -------------------------------------------------------------------------------


IN_PLACE = inspect.getsource(ownership).replace('aside = f"{path}.tmp"', "aside = path")
MUTANTS = {**without_sync(ownership), "written in place": ast.parse(IN_PLACE)}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_claim_is_convicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutant_of(ownership, MUTANTS[name])
    for part in ("LocalLease", "Ownership"):
        monkeypatch.setattr(local, part, getattr(mutant, part))
    monkeypatch.setattr(LocalStore, "own", mutant.LocalLease)

    assert any(judge(live, "subset", first=True)[1] for live in LIVES)


def test_every_sync_of_the_claim_has_its_mutant() -> None:
    assert len(MUTANTS) == 3


if __name__ == "__main__":  # without threads, so that it can fork
    races(*sys.argv[1:])
