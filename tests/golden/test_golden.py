"""Golden files: what a released schema wrote loads for ever, on every Python, without opening its code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.checkpoint import archive, history, journal
from graflow_ckpt.checkpoint.model import SCHEMA
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.checkpoint.values.codec import decode, encode
from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores import lease as lease_module
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.encoded import Compressed, Encrypted
from graflow_ckpt.stores.around.encodings import AEAD
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.files.store import LocalStore
from tests import things
from tests.golden import layouts, make
from tests.golden.layouts import HERE, SOME
from tests.object_servers import CREDENTIALS
from tests.trios import held, own_name, path_of, put, put_holding, there
from tests.unit.checkpoint import trios

SCHEMAS = sorted(Path(__file__).parent.glob("schema-*"))


@pytest.fixture(params=SCHEMAS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of one schema as a session leaves them: with its modes, and the journal under its name."""
    for file in request.param.iterdir():
        name = f".{file.name}" if file.suffix == ".journal" else file.name
        shutil.copyfile(file, tmp_path / name)
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    return tmp_path


def load(folder: Path) -> tuple[archive.Found, dict[str, Any], SessionState]:
    found, context = archive.load(LocalStore(folder), Keyring.load(), str(folder / "golden.pkl"))
    return found, context.payload, restore(found.facts, context.payload)


def test_the_current_schema_has_golden_files() -> None:
    assert f"schema-{SCHEMA}" in [folder.name for folder in SCHEMAS]


def test_the_seal_and_all_digests_hold(folder: Path) -> None:
    metadata = CheckpointManager.verify(str(folder / "golden.pkl"))

    assert (metadata.session_id, metadata.workflow, metadata.user_metadata) == (
        "golden",
        "golden",
        {"epoch": 4},
    )
    assert (metadata.epoch, metadata.sequence, metadata.transition, metadata.steps) == (3, 2, 6, 1)
    assert CheckpointManager.get_latest("golden", store=str(folder)) == str(folder / "golden.pkl")


def test_the_control_facts_are_what_they_were(folder: Path) -> None:
    _, _, state = load(folder)

    assert (state.session, state.starts, state.max_steps) == ("golden", ("prepare",), 50)
    assert (state.status, state.epoch, state.sequence, state.steps) == ("running", 3, 6, 1)
    assert (state.completed, state.skipped) == ({"prepare": 1}, {"never": 1})
    assert (state.counts, state.errors) == (
        {"prepare": 2, "left": 1, "right": 1, "finish": 1},
        {"left": "OSError: later"},
    )
    assert {name: gate.facts() for name, gate in state.gates.items()} == {"both": [3, 1, 1, 0, 0]}
    assert [spec.task_id for spec in state.pending()] == ["right", "finish", "prepare", "left"]
    assert (state.claimed, state.delayed) == ({3: 3}, [(2e9, 2)])
    left, finish = state.specs[2], state.specs[4]
    assert (left.retry_count, left.max_retries, left.priority) == (1, 2, 1)
    assert decode(_bytes(finish.task_data)) == {"data": [1]}
    assert (state.next_key, state.next_claim) == (6, 4)
    assert (list(state.tasks), decode(_bytes(state.rng))) == (["made"], [1, 2])


def test_plain_values_are_what_they_were(folder: Path) -> None:
    _, _, state = load(folder)

    for name, expected in make.VALUES.items():
        cell = _bytes(state.values[name][0])
        assert decode(cell) == expected
        assert encode(decode(cell)) == cell == encode(expected)
    assert [decode(_bytes(item)) for item in state.appended["log"]] == make.LOG
    assert decode(_bytes(state.values["prepare.__result__"][0])) == 1


def test_a_live_value_that_every_python_has_is_what_it_was(folder: Path) -> None:
    assert load(folder)[1]["live"] == {"live": make.LIVE}


def test_the_graph_is_known_without_opening_the_code(folder: Path) -> None:
    found, payload, _ = load(folder)

    after = {name: task["after"] for name, task in found.facts["graph"]["tasks"].items()}
    assert after == {
        "prepare": [],
        "left": ["prepare"],
        "right": ["prepare"],
        "finish": ["both"],
        "both": ["left", "right"],
    }
    assert isinstance(payload["code"], bytes)


def test_the_journal_leads_on_from_the_cut(folder: Path) -> None:
    found, _, state = load(folder)

    applied = history.replay(LocalStore(folder), Keyring.load(), state, found, "golden")

    assert (applied, state.sequence, state.status) == (3, 9, "failed")
    assert (state.completed, state.dead) == ({"prepare": 1, "right": 2}, {4: "ValueError: no"})
    assert decode(_bytes(state.values["right.__result__"][0])) == (2, 3)
    assert decode(_bytes(state.values["numbers"][0])) == [7]
    assert [decode(_bytes(item)) for item in state.appended["log"]] == [*make.LOG, "third"]
    assert [spec.task_id for spec in state.pending()] == ["prepare", "both", "left", "finish"]


def test_the_files_say_nothing_of_the_machine_that_wrote_them(folder: Path) -> None:
    meta = json.loads((folder / "golden.meta.json").read_text())

    assert (meta["home"], meta["host"], meta["file"]) == ("file:///golden", "golden", "golden.py")
    assert b"make.py" not in (folder / "golden.pkl").read_bytes()


def test_a_released_schema_is_not_written_again(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is there already"):
        make.main(tmp_path)


def test_the_script_still_writes_what_was_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails the schema has changed: give it a new number, an upgrade step, and golden files."""
    make.main(tmp_path / "new")
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    released = Path(__file__).parent / f"schema-{SCHEMA}"

    new = json.loads((tmp_path / "new" / "golden.state.json").read_text())
    old = json.loads((released / "golden.state.json").read_text())
    for facts in (new, old):  # fingerprints are compared within one minor version of Python
        for task in facts["graph"]["tasks"].values():
            del task["print"]
    assert new["graph"]["tasks"]["both"].pop("policy") == "AtLeast(count=1)"  # an addition
    assert new == old
    meta = [json.loads((where / "golden.meta.json").read_text()) for where in (tmp_path / "new", released)]
    assert set(meta[0]) == {*meta[1], "needs"}
    ring, place = Keyring.load(), ("golden", 3, 6)
    journals = [(where / "golden.3.6.journal").read_bytes() for where in (tmp_path / "new", released)]
    assert list(journal.read(ring, *place, journals[0])) == list(journal.read(ring, *place, journals[1]))


def _bytes(cell: Any) -> bytes:
    assert isinstance(cell, bytes)
    return cell


# --- what a released version has encrypted and compressed is read by this one -----------


FOLDER = Path(__file__).parent / "encoded-1"
RING = Keyring({"golden": bytes(range(32))})
VALUE = ["more than one frame"] * 9_000
PAYLOADS = [journal.pack(number, 1.0, [("put", "v", b"\x05", 0)]) for number in (4, 5, 6)]
PLACE = ("s", 1, 3)


def encoded(inner: CheckpointStore) -> Tenant:
    return Tenant(Compressed(Encrypted(inner, RING)), "acme")


def encrypted(inner: CheckpointStore) -> Encrypted:
    return Encrypted(inner, RING)


def test_encoded_checkpoints_are_read() -> None:
    around, alone = encoded(LocalStore(FOLDER)), encrypted(LocalStore(FOLDER))

    for store, name in ((around, "encoded"), (alone, "encrypted")):
        found, context = archive.load(store, RING, path_of(store, name))
        assert context.payload["live"]["v"] == VALUE
        assert found.metadata.user_metadata == {"note": "golden"}
    assert [path.rpartition("/")[2] for path, _ in around.list("s")] == ["encoded.pkl"]


def test_an_encrypted_journal_is_read() -> None:
    raw = (FOLDER / "journal").read_bytes()

    assert list(journal.read(RING, *PLACE, raw, (AEAD,))) == PAYLOADS


def main() -> None:
    """`python -m tests.golden.test_golden`: once per version of the formats."""
    FOLDER.mkdir()
    for store, name in (
        (encoded(LocalStore(FOLDER)), "encoded"),
        (encrypted(LocalStore(FOLDER)), "encrypted"),
    ):
        of = trios.state("s", ("put", "v", Live(VALUE), -1))
        trios.save(Path(), of=of, user={"note": "golden"}, ring=RING, store=store, path=path_of(store, name))
    frames = journal.Writer(RING, *PLACE, (AEAD,))
    (FOLDER / "journal").write_bytes(frames.head + b"".join(map(frames.frame, PAYLOADS)))


if __name__ == "__main__":
    main()


# --- what stores have laid out once they can read for ever, go on from, and write beside ---


FILES = sorted(HERE.glob("layout-*/*"))


@pytest.fixture(params=FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CheckpointStore]:
    """A store of that kind with what the file has."""
    file: Path = request.param
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with layouts.place(file.stem, tmp_path) as (url, server):
        layouts.load(file.stem, url, server, file.read_text())
        yield open_store(url)


def test_each_kind_of_store_has_the_current_layout() -> None:
    assert {file.stem for file in FILES if file.parent.name == f"layout-{layouts.NUMBER}"} == set(
        layouts.KINDS
    )


def test_the_session_goes_on_from_its_checkpoint_and_its_journal(store: CheckpointStore) -> None:
    ring = Keyring.load()
    ((path, found),) = history.newest(store, ring, "golden")
    assert isinstance(found, archive.Found)

    found, context = archive.load(store, ring, path)
    state = restore(found.facts, context.payload)
    applied = history.replay(store, ring, state, found, "golden")

    assert (applied, state.sequence, state.status) == (3, 9, "failed")
    assert state.completed == {"prepare": 1, "right": 2}
    values = {name: cell[0] for name, cell in state.values.items()}
    for name, expected in {**make.VALUES, "numbers": [7]}.items():
        cell = values[name]
        assert isinstance(cell, bytes)
        assert decode(cell) == expected
    assert context.payload["live"] == {"live": make.LIVE}


def test_its_next_owner_has_a_higher_epoch_and_writes_beside_it(store: CheckpointStore) -> None:
    ((path, meta),) = store.list("golden")
    assert list(store.newest(5, session="golden")) == [(path, meta)]

    lease = store.acquire("golden")
    put(store, own_name("golden", 7), "new", lease=lease, session="golden")

    assert lease.epoch > 4
    assert [found for found, _ in store.newest(5, session="golden")][1:] == [path]
    assert store.delete(path)
    assert len(list(store.list("golden"))) == 1
    lease.release()


def test_a_head_of_a_later_format_is_refused_by_name_and_stays_as_it_is(store: CheckpointStore) -> None:
    later = things.read(store, "head/golden").replace(b"{", b'{"format":2,', 1)
    things.write(store, "head/golden", later)

    for refused in (store.acquire, store.owner, store.delete):
        with pytest.raises(SchemaUnsupported, match="later version"):
            refused(path_of(store, own_name("golden", 1)) if refused == store.delete else "golden")

    assert things.read(store, "head/golden") == later
    assert path_of(store, own_name("s", 1)) in [path for path, _ in store.list()]


# --- checkpoints that have contents in common ----------------------------------------------


def test_contents_are_read_shared_and_let_go_of(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LIFE", -60.0)  # the save that has died is older than a day
    one, two, three = (path_of(store, name) for name in (own_name("s", 1), own_name("s", 2), "best"))
    assert (held(store, one), held(store, two), held(store, three)) == (
        SOME[:2],
        [SOME[0], SOME[2]],
        SOME[2:],
    )
    assert there(store, SOME) == {SOME[0], SOME[2]}  # one of them is damaged

    lease = store.acquire("s", take_over=True)
    assert lease.epoch == 2
    fourth = put_holding(store, own_name(sequence=4), "new", [SOME[2]], lease=lease)
    assert store.delete_many([one, two]) == 2

    assert (held(store, fourth), held(store, three)) == ([SOME[2]], SOME[2:])
    assert there(store, SOME) <= {SOME[0], SOME[2]}  # what goes while somebody owns the session may be found
    assert store.delete_many([fourth, three, *(path for path, _ in store.list("golden"))]) == 3
    lease.release()
    store.acquire("s").release()
    assert there(store, SOME) == set()
    assert things.keys(store, "data/") == []
