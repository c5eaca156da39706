"""After a power cut at any call of a writer, a checkpoint has all of its contents, whoever else had them.

Saves, deletes and sweeps of a folder that shares contents, by the enumeration of test_trio_crash_states.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.testing.holdings import contents_of, held, name_of, put_holding
from graflow_ckpt.testing.trios import all_of
from tests.crash.crash_states import Call, Link, Sync, SyncFolder, Unlink
from tests.crash.trio_reader import CORRUPT, NOTHING
from tests.crash.trio_scenarios import ANY, OWN, Scenario, Stage, chain, judge, record, weigh

pytestmark = pytest.mark.crash

ONE, TWO = b"one" * 5, b"two" * 5
OTHER = "/c/other.pkl"

Act = Callable[[Stage], object]


def put(path: str, tag: str, *contents: bytes, promise: str = "") -> Act:
    def act(stage: Stage) -> None:
        store = LocalStore(f"{stage.root}/c", share=True, disk=stage.disk)
        put_holding(store, path.removeprefix("/c/"), tag, contents)
        stage.disk.promise(promise or tag)

    return act


def delete(path: str, promise: str) -> Act:
    def act(stage: Stage) -> None:
        stage.process().delete(stage.root + path)
        stage.disk.promise(promise)

    return act


def sweep(promise: str) -> Act:
    def act(stage: Stage) -> None:
        contents_of(stage.process()).sweep()
        stage.disk.promise(promise)

    return act


def killed(act: Act, before: Callable[[Call], bool]) -> Act:
    """The process of `act` ends before the first such call; no cleanup of its comes after."""

    def run(stage: Stage) -> None:
        dead: list[Call] = []

        def dies(call: Call, _: object) -> bool:
            if dead or before(call):
                dead.append(call)
            return bool(dead)

        with stage.disk.dying(dies):
            act(stage)

    return run


def read_all(store: LocalStore, path: str) -> str:
    """The tag of the checkpoint there if it is whole with what it holds."""
    try:
        stage = json.loads(store.meta(path))["stage"]
        values = all_of(store.open(path, "pkl", stage))
        found = held(store, path)
    except CheckpointNotFound:
        return NOTHING
    except CheckpointCorrupt:
        return CORRUPT
    names = [entry["name"] for entry in json.loads(store.meta(path))["contents"]]
    return str(stage) if [name_of(data) for data in found] == names and values == stage.encode() else CORRUPT


def forgets(call: Call) -> bool:
    return isinstance(call, Unlink) and call.path.startswith("/c/.contents/")


OLD = frozenset({"old"})
SCENARIOS = [
    Scenario("a first one", lambda s: s.process().probe(), put(ANY, "new", ONE), frozenset({NOTHING, "new"})),
    Scenario(
        "one that shares what another one holds",
        put(OTHER, "old", ONE),
        put(ANY, "new", ONE),
        frozenset({NOTHING, "new"}),
    ),
    Scenario(
        "another one comes that shares", put(ANY, "old", ONE), put(OTHER, "new", ONE, promise="old"), OLD
    ),
    Scenario("overwriting", put(ANY, "old", ONE), put(ANY, "new", ONE, TWO), frozenset({"old", "new"})),
    Scenario(
        "another one that shares is deleted",
        chain(put(ANY, "old", ONE), put(OTHER, "x", ONE)),
        delete(OTHER, "old"),
        OLD,
    ),
    Scenario(
        "the one that had it first is deleted",
        chain(put(OTHER, "x", ONE), put(ANY, "old", ONE)),
        delete(OTHER, "old"),
        OLD,
    ),
    Scenario("deleting", put(ANY, "old", ONE), delete(ANY, NOTHING), frozenset({"old", NOTHING})),
    Scenario(
        "sweeping after a death while deleting another one",
        chain(put(ANY, "old", ONE), put(OTHER, "x", TWO)),
        chain(killed(delete(OTHER, ""), forgets), sweep("old")),
        OLD,
    ),
    Scenario(
        "saving again beside what a dead writer left",
        chain(put(ANY, "old", ONE), killed(put(OTHER, "x", TWO), lambda call: isinstance(call, Link))),
        put(ANY, "new", TWO),
        frozenset({"old", "new"}),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_every_crash_state_has_its_contents(scenario: Scenario) -> None:
    verdicts = judge(scenario, reader=read_all)

    print(f"\n{scenario.name:50}", *(f"{model} {verdict}" for model, verdict in verdicts.items()))
    for verdict in verdicts.values():
        assert verdict.states > 3
        assert verdict.bad == 0, verdict.example


def test_one_sync_fewer_is_convicted() -> None:
    scenario = SCENARIOS[0]
    before, calls = record(scenario)
    syncs = [at for at, call in enumerate(calls) if isinstance(call, Sync | SyncFolder)]
    contents = [at for at in syncs if "contents" in str(calls[at]) or at < syncs[3]][1:]
    assert [type(calls[at]) for at in contents] == [Sync, SyncFolder]  # of the file, of its name

    for at in contents:
        verdicts = weigh(scenario, before, calls[:at] + calls[at + 1 :], read_all)

        print(f"\nwithout {calls[at]!s:52}", *(f"{model} {verdict}" for model, verdict in verdicts.items()))
        assert verdicts["subset"].bad > 0


def test_killed_before_any_call_of_a_save_nothing_stays_that_the_next_one_does_not_tidy_up(
    tmp_path: Path,
) -> None:
    (tmp_path / "rehearsal").mkdir()
    rehearsal = Stage(tmp_path / "rehearsal")
    put(ANY, "old", ONE)(rehearsal)
    rehearsal.disk.calls.clear()
    put(ANY, "new", ONE, TWO)(rehearsal)
    calls = len(rehearsal.disk.calls) - 1

    for number in range(calls):
        (tmp_path / str(number)).mkdir()
        stage = Stage(tmp_path / str(number))
        put(ANY, "old", ONE)(stage)
        with stage.disk.dying(lambda _, before, last=number: len(before) >= last):
            put(ANY, "new", ONE, TWO)(stage)
        assert read_all(stage.process(), stage.root + ANY) in ("old", "new")

        put(ANY, "next", TWO)(stage)
        contents_of(stage.process()).sweep()

        assert read_all(stage.process(), stage.root + ANY) == "next"
        names = {path.name for path in (tmp_path / str(number) / "c").glob("best*")}
        assert names == {"best.meta.json", "best.next.contents", "best.pkl", "best.state.json"}
        assert [path.name for path in (tmp_path / str(number) / "c/.contents").iterdir()] == [name_of(TWO)]


def test_a_new_owner_takes_away_what_a_dead_one_held_for_a_save(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    put(ANY, "old", ONE)(stage)
    killed(put(OWN, "n1", ONE, TWO), lambda call: isinstance(call, SyncFolder) and "n1" in call.path)(stage)
    assert (tmp_path / f"{OWN[1:-4]}.n1.contents").is_dir()

    stage.process().acquire("s").release()

    assert not list(tmp_path.glob("c/session_s*"))
    assert [path.name for path in (tmp_path / "c/.contents").iterdir()] == [name_of(ONE)]
    assert read_all(stage.process(), stage.root + ANY) == "old"
