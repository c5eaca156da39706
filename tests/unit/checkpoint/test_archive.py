"""The archive: what is saved is found again, what anybody has touched is not opened; and its metadata."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import archive, model
from graflow_ckpt.checkpoint.archive import Allowance
from graflow_ckpt.checkpoint.model import (
    CheckpointMetadata,
    Document,
    check_metadata,
    check_schema,
    now_iso,
    parse,
    supported,
    upgrade,
)
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    NotStorable,
    SchemaUnsupported,
    TooLarge,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.facts import Live
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.store import LocalStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.trios import RING


def find(path: str | Path, ring: Keyring = RING) -> archive.Found:
    return archive.find(LocalStore(Path(path).parent), ring, str(path))


def rewrite_meta(path: Path, change: Callable[[Document], Document], ring: Keyring = RING) -> None:
    """The meta changed and sealed anew, as only somebody with the key could."""
    meta = path.with_suffix(".meta.json")
    meta.write_text(json.dumps(seal(change(json.loads(meta.read_text())), ring)))


# --- saving and finding ----------------------------------------------------------------


def test_what_was_saved_is_found_with_its_facts_and_no_pickle_is_opened(tmp_path: Path) -> None:
    saved = trios.save(tmp_path, user={"epoch": 3}, sequence=4, epoch=2)

    found = find(saved.path)

    assert found.metadata == saved
    assert (found.metadata.user_metadata, found.metadata.workflow) == ({"epoch": 3}, "w")
    assert (found.meta["sequence"], found.facts["epoch"], found.facts["session_id"]) == (4, 2, "s")
    assert list(found.facts["graph"]["tasks"]) == ["a", "b"]


class Stubborn(Disk):
    """A file system that syncs no folders, as some network ones."""

    def sync_folder(self, path: str) -> bool:
        return False


def test_a_save_that_no_folder_was_synced_for_says_so_also_when_it_is_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, disk=Stubborn())
    store.probe()

    saved = trios.save(tmp_path, store=store)

    assert not saved.synced
    assert not find(saved.path).metadata.synced


def test_the_values_are_those_of_the_session(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)

    found, context = archive.load(LocalStore(tmp_path), RING, saved.path)

    assert isinstance(context, ExecutionContext)
    assert context.payload["plain"] == {"x": b"\x05"}
    assert context.payload["data"] == [("plain", b"\x07")]
    assert list(context.graph_from_code().nodes) == ["a", "b"]
    assert found.facts["pending_tasks"][0]["task_id"] == "a"


def test_the_facts_are_one_line_of_json(tmp_path: Path) -> None:
    trios.save(tmp_path)

    text = (tmp_path / "x.state.json").read_text()

    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert json.loads(text)["completed_tasks"] == []


def test_the_graph_is_written_down_once_for_all_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Counted(dict[str, Any]):
        def items(self) -> Any:
            read.append("facts")
            return super().items()

    monkeypatch.setattr(trios, "_PROGRAM", replace(trios._PROGRAM, facts=Counted(trios._PROGRAM.facts)))

    first, second = trios.save(tmp_path), trios.save(tmp_path, "y.pkl")

    assert read == ["facts"]
    assert find(first.path).facts["graph"] == find(second.path).facts["graph"]
    assert list(find(second.path).facts["graph"]["tasks"]) == ["a", "b"]


def test_a_path_that_was_not_given_says_session_step_and_sequence(tmp_path: Path) -> None:
    path = archive.auto_path(LocalStore(tmp_path), "s", 12, 3)

    assert Path(path).parent == tmp_path
    assert Path(path).name.startswith("session_s_step_12_")
    assert path.endswith("-3.pkl")


def test_a_value_that_cannot_be_pickled_leaves_the_trio_before_it(tmp_path: Path) -> None:
    before = trios.save(tmp_path)
    bad = trios.state("s", ("put", "bad", Live(n for n in ()), -1))

    with pytest.raises(NotStorable, match="bad"):
        trios.save(tmp_path, of=bad, sequence=2)

    assert find(before.path).metadata == before


def test_checking_reads_all_of_a_trio_and_says_how_much(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)

    found, size = archive.check(LocalStore(tmp_path), RING, saved.path)

    assert (found.path, size) == (saved.path, (tmp_path / "x.pkl").stat().st_size)


# --- what is not opened ----------------------------------------------------------------


def flip(path: Path, at: int = -3) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped pkl": lambda folder: flip(folder / "x.pkl"),
    "truncated pkl": lambda folder: (folder / "x.pkl").write_bytes((folder / "x.pkl").read_bytes()[:-1]),
    "longer pkl": lambda folder: (folder / "x.pkl").write_bytes((folder / "x.pkl").read_bytes() + b"."),
    "empty pkl": lambda folder: (folder / "x.pkl").write_bytes(b""),
    "no pkl": lambda folder: (folder / "x.pkl").unlink(),
    "flipped state": lambda folder: flip(folder / "x.state.json"),
    "no state": lambda folder: (folder / "x.state.json").unlink(),
    "empty meta": lambda folder: (folder / "x.meta.json").write_bytes(b""),
    "meta is a list": lambda folder: (folder / "x.meta.json").write_bytes(b"[]"),
    "swapped pkl": lambda folder: (folder / "y.pkl").replace(folder / "x.pkl"),
    "swapped state": lambda folder: (folder / "y.state.json").replace(folder / "x.state.json"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_trio_is_one_clear_error_with_its_path(tmp_path: Path, kind: str) -> None:
    saved = trios.save(tmp_path)
    other = trios.state("s", ("put", "x", b"\x06", -1), ("skipped", "b"))
    trios.save(tmp_path, "y.pkl", of=other, sequence=2)
    DAMAGES[kind](tmp_path)

    with pytest.raises(CheckpointError, match=r"x\.pkl") as caught:
        archive.load(LocalStore(tmp_path), RING, saved.path)

    assert isinstance(caught.value, CheckpointCorrupt)
    assert "corrupted or uses an incompatible schema version" in str(caught.value)


def test_a_checkpoint_that_is_not_there_is_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        find(tmp_path / "x.pkl")


@pytest.mark.parametrize(
    ("text", "other", "words"),
    [
        ('"steps":0', '"steps":1', r"x\.pkl: The seal of this checkpoint does not fit"),
        ('"seal":', '"zeal":', "no seal"),
    ],
)
def test_a_meta_that_was_changed_or_has_no_seal_is_unsafe(
    tmp_path: Path, text: str, other: str, words: str
) -> None:
    saved = trios.save(tmp_path)
    meta = tmp_path / "x.meta.json"
    meta.write_text(meta.read_text().replace(text, other))

    with pytest.raises(UnsafeCheckpoint, match=words) as caught:
        find(saved.path)

    assert caught.value.path == saved.path


def test_a_foreign_key_is_unknown_by_its_id_and_host(tmp_path: Path) -> None:
    saved = trios.save(tmp_path, ring=Keyring({"k9": b"9" * 32}))

    with pytest.raises(UnknownKey, match="sealed with key k9 on ") as caught:
        find(saved.path)

    assert (caught.value.key_id, caught.value.path) == ("k9", saved.path)
    described = archive.described(LocalStore(tmp_path), saved.path)
    assert described["session_id"] == "s"  # what `trust` shows, with all digests checked


def test_what_is_described_without_a_key_has_its_digests_checked(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)
    flip(tmp_path / "x.pkl")

    with pytest.raises(CheckpointCorrupt):
        archive.described(LocalStore(tmp_path), saved.path)


@pytest.mark.parametrize("name", ["x.pkl", "x.meta.json", "x.state.json"])
def test_a_file_that_everybody_can_write_is_unsafe(tmp_path: Path, name: str) -> None:
    saved = trios.save(tmp_path)
    (tmp_path / name).chmod(0o666)

    with pytest.raises(UnsafeCheckpoint, match="can be written by everybody"):
        find(saved.path)


@pytest.mark.parametrize("parts", [None, {}, {"state.json": {"size": "x", "chunks": []}}, {"state.json": 5}])
def test_a_meta_that_does_not_say_what_its_parts_are_is_corrupt(tmp_path: Path, parts: Any) -> None:
    saved = trios.save(tmp_path)
    rewrite_meta(tmp_path / "x.pkl", lambda meta: meta | {"parts": parts})

    with pytest.raises(CheckpointCorrupt, match=r"does not say what its state\.json is"):
        find(saved.path)


def test_a_moved_or_renamed_trio_is_still_itself(tmp_path: Path) -> None:
    trios.save(tmp_path)
    (tmp_path / "away").mkdir()
    for part in ("pkl", "state.json", "meta.json"):
        (tmp_path / f"x.{part}").rename(tmp_path / "away" / f"other.{part}")

    found, context = archive.load(LocalStore(tmp_path / "away"), RING, str(tmp_path / "away" / "other.pkl"))

    assert (found.metadata.session_id, context.session_id) == ("s", "s")


# --- overwritten meanwhile -------------------------------------------------------------


class Overwritten(LocalStore):
    """A store in which a newer trio appears right after a meta was read."""

    times = 1

    def meta(self, path: str) -> bytes:
        raw = super().meta(path)
        if self.times:
            self.times -= 1
            newer = trios.state("s", ("skipped", f"task_{self.times}"))
            trios.save(Path(path).parent, of=newer, sequence=10 - self.times)
        return raw


def test_a_trio_that_is_overwritten_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)

    found = archive.find(Overwritten(tmp_path), RING, saved.path)

    assert found.meta["sequence"] == 10


def test_a_trio_that_never_comes_to_rest_is_given_up(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)
    restless = Overwritten(tmp_path)
    restless.times = 10**6

    with pytest.raises(CheckpointCorrupt, match="changes faster than it can be read"):
        archive.find(restless, RING, saved.path)


# --- schemas ---------------------------------------------------------------------------


def test_a_newer_schema_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    saved = trios.save(tmp_path)
    rewrite_meta(tmp_path / "x.pkl", lambda meta: meta | {"schema_version": "2.0", "seal": "of the future"})

    with pytest.raises(SchemaUnsupported, match=r"Unsupported checkpoint schema version: 2\.0"):
        find(saved.path)


def test_an_older_schema_is_brought_up_to_date_when_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invented schema 0.9, in which groups that are through had no place and steps were called turns."""

    def step(meta: Document, facts: Document) -> tuple[Document, Document]:
        meta["steps"], facts["steps"] = meta.pop("turns"), facts.pop("turns")
        return meta, facts | {"passed": []}

    monkeypatch.setattr(model, "SCHEMA", "0.9")
    real = json.dumps

    def as_09(document: Any, **options: Any) -> str:
        if isinstance(document, dict) and "steps" in document:
            document = {k: v for k, v in document.items() if k not in ("steps", "passed")}
            document |= {"turns": 7, "schema_version": "0.9"}
        return real(document, **options)

    monkeypatch.setattr("graflow_ckpt.checkpoint.archive.json.dumps", as_09)
    saved = trios.save(tmp_path)
    monkeypatch.undo()
    monkeypatch.setitem(model.UPGRADES, "0.9", ("1.0", step))

    found, context = archive.load(LocalStore(tmp_path), RING, saved.path)

    assert json.loads((tmp_path / "x.state.json").read_text())["schema_version"] == "0.9"
    assert (found.facts["schema_version"], found.facts["steps"], found.facts["passed"]) == ("1.0", 7, [])
    assert (found.metadata.steps, context.payload["plain"]) == (7, {"x": b"\x05"})


@pytest.mark.parametrize("part", [".pkl", ".state.json"])
def test_a_part_of_another_size_is_closed_when_it_is_refused(part: str, tmp_path: Path) -> None:
    path = Path(trios.save(tmp_path).path)
    file = path.with_suffix(part)
    file.write_bytes(file.read_bytes()[:-1])
    before = len(os.listdir("/dev/fd"))

    for _ in range(3):
        with pytest.raises(CheckpointCorrupt):
            archive.load(LocalStore(tmp_path), RING, str(path))

    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("stage", ["\0", "../x", "\ud800", "x" * 65, 7, None])
def test_a_staging_id_that_is_none_is_refused_before_anything_is_opened(stage: Any, tmp_path: Path) -> None:
    path = Path(trios.save(tmp_path).path)
    rewrite_meta(path, lambda meta: meta | {"stage": stage})

    with pytest.raises(CheckpointCorrupt, match="staging id"):
        find(path)


# --- what a checkpoint may take ---------------------------------------------------------


def test_past_the_limit_it_is_counted_and_no_longer_written() -> None:
    meter, out = Allowance(10).meter("s", "x.pkl", "request"), io.BytesIO()
    sink = meter.sink(out)

    assert sink.write(b"12345") == 5
    meter.check()
    assert sink.write(memoryview(b"123456").cast("B")) == 6
    sink.write(bytes(1000))

    assert out.getvalue() == b"12345"
    with pytest.raises(TooLarge) as caught:
        meter.check()
    assert (caught.value.size, caught.value.limit, caught.value.path) == (1011, 10, "x.pkl")


def test_from_four_fifths_of_the_limit_on_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    allowance = Allowance(1_000_000)

    with caplog.at_level(logging.WARNING):
        for size in (799_999, 800_000, 900_000):
            meter = allowance.meter("s", "x.pkl", "request")
            meter.sink(io.BytesIO()).write(bytes(size))
            meter.done()
            assert len(caplog.records) == (size >= 800_000)

    assert "(0.8 MB) approaches limit (1 MB)" in caplog.text


def test_without_a_limit_nothing_stands_between() -> None:
    out = io.BytesIO()
    meter = Allowance().meter("s", "x.pkl", "request")

    assert meter.sink(out) is out
    meter.check()
    meter.done()


@pytest.mark.parametrize("cause", ["failure", "signal", "pause"])
def test_what_a_session_pauses_with_is_written_to_the_end(cause: str) -> None:
    meter, out = Allowance(10).meter("s", "x.pkl", cause), io.BytesIO()

    meter.sink(out).write(bytes(1000))
    meter.check()

    assert len(out.getvalue()) == 1000


# --- metadata --------------------------------------------------------------------------


def metadata(**more: Any) -> CheckpointMetadata:
    made = CheckpointMetadata.create("chk_1", "s", 3, "a", {"queue": "memory"}, {"epoch": 2})
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_metadata_comes_back_from_its_document() -> None:
    made = metadata(path="x.pkl", sequence=4, epoch=2, argv=["a"], inputs={"k": "d"}, parent="chk_0")

    back = CheckpointMetadata.from_document("x.pkl", json.loads(json.dumps(made.document())))

    assert back == made
    assert "path" not in made.document()


def test_metadata_is_of_now_in_utc() -> None:
    assert now_iso().endswith("+00:00")
    assert metadata().created_at[:10] == now_iso()[:10]


def test_the_users_dict_is_not_the_one_that_is_kept() -> None:
    mine = {"epoch": 1}

    made = CheckpointMetadata.create("chk_1", "s", 3, "a", {}, mine)
    made.user_metadata["more"] = 1

    assert mine == {"epoch": 1}


def test_fields_that_this_version_does_not_know_are_left_alone() -> None:
    document = metadata().document() | {"seal": "x", "parts": {}, "later": 1}

    assert CheckpointMetadata.from_document("x.pkl", document).session_id == "s"


@pytest.mark.parametrize(
    "damage",
    [
        {"checkpoint_id": None, "drop": "backend"},
        {"steps": "3"},
        {"epoch": None},
        {"sequence": [1]},
        {"created_at": 5},
        {"session_id": None},
        {"session_id": "../../etc"},
    ],
)
def test_metadata_that_nobody_can_have_written_is_corrupt(damage: dict[str, Any]) -> None:
    document = metadata().document() | damage
    document.pop(damage.get("drop", ""), None)

    with pytest.raises(CheckpointCorrupt, match=r"x\.pkl is corrupted or uses an incompatible") as caught:
        CheckpointMetadata.from_document("x.pkl", document)

    assert caught.value.path == "x.pkl"


# --- the user's metadata ---------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_json_is_taken_and_left_as_it_is(given_metadata: dict[str, Any]) -> None:
    before = json.dumps(given_metadata)

    copy = check_metadata(given_metadata)

    assert json.dumps(given_metadata) == json.dumps(copy) == before


def test_what_is_kept_is_a_copy_all_the_way_down() -> None:
    mine = {"losses": [1]}

    copy = check_metadata(mine)
    mine["losses"].append(2)

    assert copy == {"losses": [1]}
    assert check_metadata(None) == {}


nested: list[Any] = []
nested.append(nested)
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    "value",
    [
        {1: "integer keys"},
        (1, 2),
        {3},
        b"bytes",
        object(),
        float("nan"),
        float("inf"),
        -float("inf"),
        [{"inside": float("inf")}],
        nested,
        deep,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(NotStorable, match=r"metadata\['loss'\] is a .*, which JSON cannot hold") as caught:
        check_metadata({"fine": 1, "loss": value})

    assert caught.value.path == "metadata['loss']"


# --- documents -------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"a": 1', b"[" * 200_000])
def test_what_is_no_json_is_a_corrupt_companion_by_name(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"x\.pkl is corrupted .*\.meta\.json is not valid JSON"):
        parse("x.pkl", raw, ".meta.json")


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_json_that_is_no_object_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"\.state\.json is no JSON object"):
        parse("x.pkl", raw, ".state.json")


# --- schemas ---------------------------------------------------------------------------


def test_a_newer_schema_is_refused_with_the_documented_text() -> None:
    with pytest.raises(ValueError, match=r"^Unsupported checkpoint schema version: 9\.9\.") as caught:
        check_schema("x.pkl", "9.9")

    error = caught.value
    assert isinstance(error, SchemaUnsupported)
    assert str(error) == (
        "Unsupported checkpoint schema version: 9.9. Supported: ['1.0']. "
        "Checkpoint schema version 9.9 is incompatible with current version 1.0. "
        "Migration required: upgrade graflow_ckpt to read x.pkl."
    )
    assert (error.version, error.path) == ("9.9", "x.pkl")


@pytest.mark.parametrize("version", [1.0, ["1.0"], {}, "1.0 ", None])
def test_what_is_no_schema_is_refused_and_where_none_is_named_the_bytes_are_damaged(version: object) -> None:
    with pytest.raises(CheckpointCorrupt if version is None else SchemaUnsupported):
        check_schema("x.pkl", version)


def test_older_schemas_are_brought_up_to_date_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_08(meta: Document, state: Document) -> tuple[Document, Document]:
        return meta, state | {"passed": state.pop("groups")}

    def from_09(meta: Document, state: Document) -> tuple[Document, Document]:
        return meta | {"epoch": 1}, state

    monkeypatch.setattr(model, "UPGRADES", {"0.8": ("0.9", from_08), "0.9": ("1.0", from_09)})
    old_meta, old_state = {"schema_version": "0.8"}, {"schema_version": "0.8", "groups": ["g"]}

    meta, state = upgrade(old_meta, old_state)

    assert supported() == ["0.8", "0.9", "1.0"]
    assert meta == {"schema_version": "1.0", "epoch": 1}
    assert state == {"schema_version": "1.0", "passed": ["g"]}
    assert (old_meta, old_state) == ({"schema_version": "0.8"}, {"schema_version": "0.8", "groups": ["g"]})
