"""Checkpoints and journals of a later version, in each kind of store: today's code refuses them by name.

Nothing falls back past them, and nothing of their session is deleted.
"""

from __future__ import annotations

import json
import logging
import pickle
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, DeleteOnSuccess, EveryTask, KeepLast, OfAll, Workflow
from graflow_ckpt.checkpoint import archive, history, journal, model
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.checkpoint.snapshot import capture, restore
from graflow_ckpt.cli.locate import overview
from graflow_ckpt.core.errors import (
    Fenced,
    GraphError,
    JournalDamaged,
    SchemaUnsupported,
    ValueTorn,
    WorkflowCancelled,
)
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, new_key
from tests.acceptance.places import LONG, Box, Seen, idle
from tests.golden.layouts import AOF
from tests.golden.make import KEY
from tests.loops import chain, loop, of, pair
from tests.stretch import stretched
from tests.trios import all_of, writer

NEEDS = "needs tomorrow, which this graflow-ckpt does not know"
LATER = max(map(int, journal._KNOWN)) + 1  # a format of journals that no reader here knows


@dataclass
class Place:
    """A store with a session that has run, and the key."""

    url: str
    store: CheckpointStore
    ring: Keyring

    def run(self, **settings: Any) -> Any:
        return pair(store=self.url, **settings).execute()

    def newest(self) -> tuple[str, archive.Found]:
        ((path, found), *_) = history.newest(self.store, self.ring, "s")
        assert isinstance(found, archive.Found)
        return path, found

    def save_later(self, **changes: Any) -> str:
        """One more checkpoint of the session, as a later version writes it."""
        path, found = self.newest()
        _, context = archive.load(self.store, self.ring, path)
        state = restore(found.facts, context.payload)
        lease = self.store.acquire("s")
        try:
            sequence = found.metadata.sequence + 1
            later = archive.auto_path(self.store, "s", state.steps, sequence)
            metadata = replace(
                found.metadata, path=later, sequence=sequence, epoch=lease.epoch,
                checkpoint_id=f"chk_{1:032x}", needs=["tomorrow"], **changes,
            )  # fmt: skip
            program = Program(found.facts["graph"], context.payload["code"], workflow="w")
            archive.save(self.store, self.ring, lease, capture(state), program, metadata)
        finally:
            lease.release()
        return later

    def plant(self, *, ring: Keyring | None = None, **changes: Any) -> str:
        """Put a checkpoint into the session as no owner does: the newest one, with a changed meta."""
        path, found = self.newest()
        meta = json.loads(self.store.meta(path)) | {"stage": "planted"} | changes
        data = {"meta.json": json.dumps(meta if ring is None else seal(meta, ring)).encode()}
        for part in ("pkl", "state.json"):
            data[part] = all_of(self.store.open(path, part, found.stage))
        planted = archive.auto_path(self.store, "s", 9, 9)
        parts = [(part, writer(data[part])) for part in ("pkl", "state.json", "meta.json")]
        self.store.put(planted, parts, lease=None, stage="planted")
        return planted

    def write_later_journal(self, monkeypatch: pytest.MonkeyPatch, sealed_for: int = 3) -> None:
        lease = self.store.acquire("s")
        with monkeypatch.context() as patch:
            patch.setattr(journal, "FORMAT", LATER)
            writer = journal.Writer(self.ring, "s", lease.epoch, sealed_for)
            segment = self.store.journal(lease, 3)
            segment.append(writer.head + writer.frame(b"of another shape"))
            segment.close()
        lease.release()

    def kept(self) -> list[Any]:
        """All checkpoints and all records."""
        segments = [
            (epoch, after, bytes(raw).rstrip(b"\0")) for epoch, after, raw in self.store.segments("s")
        ]
        return [sorted((path, bytes(raw)) for path, raw in self.store.list("s")), segments]


@pytest.fixture(params=["folder", "sqlite", "redis", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", KEY)
    url = f"{tmp_path}/checkpoints" if request.param == "folder" else f"sqlite:///{tmp_path}/kept.db"
    if request.param == "redis":
        url = request.getfixturevalue("own_redis")(AOF).url
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    return Place(url, open_store(url), Keyring.load())


def test_a_checkpoint_of_today_needs_nothing(place: Place) -> None:
    place.run()

    assert place.newest()[1].meta["needs"] == []


def test_a_session_with_a_later_checkpoint_is_refused_and_does_not_fall_back(place: Place) -> None:
    place.run()
    later = place.save_later(status="running")
    before = place.kept()

    for refused in (
        place.run,
        lambda: CheckpointManager.get_latest("s", store=place.url),
        lambda: CheckpointManager.verify(later, store=place.url),
        lambda: CheckpointManager.resume_from_checkpoint(later, store=place.url),
    ):
        with pytest.raises(SchemaUnsupported, match=NEEDS) as error:
            refused()
        assert "Upgrade graflow-ckpt here" in error.value.hint
        assert error.value.needs == ("tomorrow",)
    assert place.kept() == before
    (row,) = overview(place.url)
    assert (row.session, row.status) == ("s", "unknown")
    assert "needs tomorrow" in row.note


def test_nothing_of_a_session_with_a_later_checkpoint_is_pruned(place: Place) -> None:
    place.run()
    place.save_later(status="completed")
    before = place.kept()

    for retention in (OfAll(KeepLast(1)), OfAll(DeleteOnSuccess())):
        pruned = CheckpointManager.prune(retention, store=place.url)
        assert pruned.cuts == ()
        assert {reason for _, reason in pruned.spared} == {"later"}
    assert CheckpointManager.cleanup_old_checkpoints(1, "s", store=place.url) == 0
    assert place.kept() == before


def test_a_later_journal_is_refused_and_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(durability="journal")
    place.write_later_journal(monkeypatch)
    before = place.kept()

    with pytest.raises(SchemaUnsupported, match=rf"journal of session s .* has format {LATER}"):
        place.run(durability="journal")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)

    assert pruned.cuts == ()
    assert place.kept() == before


@pytest.mark.parametrize("said", [{"needs": ["tomorrow"]}, {"schema_version": "9.0"}, {"needs": "all"}])
def test_what_no_seal_holds_for_is_a_bad_checkpoint_and_not_a_later_one(
    place: Place, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place.run()
    good, _ = place.newest()
    planted = place.plant(epoch=9, sequence=9, **said)

    with caplog.at_level(logging.WARNING):
        assert place.run() == 2

    assert planted in caplog.text
    assert CheckpointManager.get_latest("s", store=place.url) != planted
    (row,) = overview(place.url)
    assert (row.status, row.note) == ("completed", "1 newer checkpoint bad")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)
    assert good in {cut.path for cut in pruned.cuts}
    assert "later" not in {reason for _, reason in pruned.spared}


def test_what_a_key_that_is_not_here_has_sealed_is_not_continued_and_not_pruned(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run()
    with monkeypatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", new_key())
        planted = place.plant(epoch=9, sequence=9, needs=["tomorrow"], ring=Keyring.load())

    assert place.run() == 2
    assert CheckpointManager.get_latest("s", store=place.url) != planted
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)
    assert (pruned.cuts, {reason for _, reason in pruned.spared}) == ((), {"later"})


def test_a_later_checkpoint_of_another_session_stops_none_in_whose_place_it_is_put(place: Place) -> None:
    place.run()
    planted = place.plant(session_id="other", needs=["tomorrow"], ring=place.ring)

    assert place.run() == 2
    assert CheckpointManager.get_latest("s", store=place.url) != planted


def test_a_journal_that_no_seal_holds_for_is_damaged_and_not_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(durability="journal")
    place.write_later_journal(monkeypatch, sealed_for=7)

    with pytest.raises(JournalDamaged):
        place.run(durability="journal")
    pruned = CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=place.url)

    assert pruned.spared == ()
    assert pruned.cuts


def test_a_later_schema_is_refused_if_it_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", KEY)
    url = str(tmp_path / "checkpoints")
    place = Place(url, open_store(url), Keyring.load())
    place.run()
    path, _ = place.newest()
    later = place.plant(schema_version="9.0", sequence="ninth", ring=place.ring)

    with pytest.raises(SchemaUnsupported, match=r"Unsupported checkpoint schema version: 9\.0"):
        place.run()
    assert CheckpointManager.prune(OfAll(DeleteOnSuccess()), store=url).cuts == ()
    assert {path, later} <= {path for path, _ in place.store.list("s")}


def test_what_is_lacking_is_found_in_any_meta() -> None:
    assert model.lacking({"schema_version": model.SCHEMA}) == ()
    assert model.lacking({"schema_version": model.SCHEMA, "needs": ["a", 3]}) == ("a", "3")
    assert model.lacking({"schema_version": [], "needs": "a"}) == ("schema []", "needs")


# --- torn values ------------------------------------------------------------------------


def training(fails: bool, **options: Any) -> tuple[list[Any], Any, list[int]]:
    """Three epochs on a live model; in the second one, after its change, the first attempt fails."""
    attempts = []

    def epoch(context) -> None:
        model = context.get_channel().get("model")
        attempts.append(context.attempt)
        model.items.append(context.cycle)
        if fails and context.cycle == 1 and context.attempt < 3:
            model.items.append("half")
            raise OSError("flaky")
        if context.cycle < 2:
            context.next_iteration()

    flow = chain(epoch, max_retries=2, **options)
    flow.get_channel().set("model", Box(0))
    flow.execute()
    return flow.get_channel().get("model").items, flow.execution_context, attempts


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_torn_value_takes_the_session_back_to_its_cut_and_the_end_is_the_same(durability: str) -> None:
    seen = Seen()

    quiet, _, _ = training(False, session_id="quiet", checkpoint=EveryTask(), durability=durability)
    torn, context, attempts = training(
        True, session_id="torn", checkpoint=EveryTask(), durability=durability, observers=[seen]
    )

    assert torn == quiet == [0, 0, 1, 2]
    assert attempts == [1, 1, 2, 3, 1]
    assert context.steps == 3
    assert seen.kinds("session_went_back") == ["session_went_back epoch"] * 2


def make(context) -> None:
    context.get_channel().set("box", Box())


def test_going_back_gives_fresh_objects_and_takes_siblings_back_too() -> None:
    meeting = threading.Barrier(2, timeout=LONG)
    boxes: list[Any] = []

    def tears(context) -> None:
        box = context.get_channel().get("box")
        boxes.append(box)
        if context.attempt == 1:
            meeting.wait()
            box.items.append("half")
            raise OSError
        box.items.append("whole")

    def sibling(context) -> None:
        if not boxes or len(boxes) < 2:
            meeting.wait()
        context.get_channel().append("log", "sibling")

    flow = chain(make, (of(tears, max_retries=1), sibling), session_id="s", checkpoint=EveryTask())
    flow.execute()

    assert boxes[0] is not boxes[1]
    assert flow.get_channel().get("box").items == ["whole"]
    assert flow.get_channel().get("log") == ["sibling"]


def test_a_torn_value_without_a_cut_stops_the_session_by_name() -> None:
    def tears(context) -> None:
        context.get_channel().get("box").items.append("half")
        raise OSError("flaky")

    flow = chain(tears, max_retries=1)
    flow.get_channel().set("box", Box())
    with pytest.raises(
        ValueTorn, match=r"'tears' failed .* 'box' in place, and there is no checkpoint"
    ) as torn:
        flow.execute()

    assert isinstance(torn.value.__cause__, OSError)
    assert torn.value.name == "box"


def test_a_failed_attempt_that_changed_nothing_is_retried_without_going_back() -> None:
    seen = Seen()
    boxes = []

    def flaky(context) -> None:
        boxes.append(context.get_channel().get("box"))
        if context.attempt == 1:
            raise OSError

    flow = chain(flaky, max_retries=1, session_id="s", checkpoint=EveryTask(), observers=[seen])
    flow.get_channel().set("box", Box(1))
    flow.execute()

    assert boxes[0] is boxes[1]
    assert seen.kinds("session_went_back") == []


def check_cut_before() -> None:
    """The newest checkpoint is that of the first task."""
    restored, metadata = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert metadata.steps == 1
    assert restored.get_channel().get("box").items == []


def test_after_the_last_retry_the_cut_before_stands() -> None:
    def tears(context) -> None:
        context.get_channel().get("box").items.append(context.attempt)
        raise OSError(context.attempt)

    with pytest.raises(OSError, match="2") as failed:
        chain(make, tears, max_retries=1, session_id="s", checkpoint=EveryTask()).execute()

    assert "graflow-ckpt resume s" in failed.value.__notes__[0]
    check_cut_before()


@pytest.mark.parametrize(
    ("how", "error"), [("fails", OSError), ("cancels", WorkflowCancelled), ("is refused", GraphError)]
)
def test_no_cut_photographs_what_a_last_attempt_may_have_changed(
    how: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def tears(context) -> None:
        context.get_channel().get("box").items.append("half")
        if how == "cancels":
            context.cancel_workflow("no more")
        if how == "fails":
            raise OSError("no more")
        context.next_task("left", goto=True)  # refused: `join` does not wait for this task

    left, right, join = idle("left", "right", "join")
    begin = of(make)
    flow = chain(begin, tears, session_id="s", checkpoint=EveryTask(), max_parallel=1)
    with pytest.raises(error):
        flow.add(begin >> (left | right) >> join).execute()

    check_cut_before()
    assert "box may have been changed" in caplog.text


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
@pytest.mark.parametrize("shares", [False, True], ids=["apart", "shared"])
def test_what_a_sibling_saves_afterwards_has_nothing_of_it(durability: str, shares: bool) -> None:
    seen, lent = Seen(), threading.Event()
    bad = [True]

    def tears(context) -> None:
        assert not shares or lent.wait(LONG)
        context.get_channel().get("box").items.append("half" if bad else "whole")
        if bad:
            raise OSError("no more")

    def sibling(context) -> None:
        box = context.get_channel().get("box") if shares else Box()
        lent.set()
        assert seen.first("task_ended tears").wait(LONG)
        box.items.append("sibling")
        context.checkpoint()

    def flow() -> Workflow:
        beside = of(tears), of(sibling)
        return chain(
            make, beside, session_id="s", checkpoint=EveryTask(), durability=durability, observers=[seen]
        )

    with pytest.raises(OSError, match="no more"):
        flow().execute()
    bad.clear()
    again = flow()
    again.execute()

    box = again.get_channel().get("box").items
    assert sorted(box) == (["sibling", "whole"] if shares else ["whole"])


def test_a_thread_past_its_deadline_keeps_only_what_the_session_has_let_go_of() -> None:
    release, done = threading.Event(), threading.Event()
    boxes = []

    def slow(context) -> None:
        box = context.get_channel().get("box")
        boxes.append(box)
        if context.attempt == 1:
            release.wait(LONG)
            box.items.append("late")
            done.set()
        else:
            release.set()
            assert done.wait(LONG)

    flow = chain(slow, timeout=stretched(0.1), max_retries=1, session_id="s", checkpoint=EveryTask())
    flow.get_channel().set("box", Box(1))
    flow.execute()

    assert boxes[0] is not boxes[1]
    assert boxes[0].items == [1, "late"]
    assert flow.get_channel().get("box").items == [1]


def test_a_thread_past_its_deadline_that_shares_with_a_sibling_takes_the_session_back() -> None:
    lent, release, done = threading.Event(), threading.Event(), threading.Event()
    boxes: list[Any] = []
    seen = Seen()

    def slow(context) -> None:
        box = context.get_channel().get("box")
        boxes.append(box)
        lent.set()
        if len(boxes) == 1:
            release.wait(LONG)
            box.items.append("late")
            done.set()
        else:
            assert seen.first("task_ended sibling").wait(LONG)

    def sibling(context) -> None:
        assert lent.wait(LONG)
        box = context.get_channel().get("box")
        while len(boxes) < 2:
            threading.Event().wait(0.001)
        box.items.append("sibling")

    def last(context) -> list[Any]:
        release.set()
        assert done.wait(LONG)
        return list(context.get_channel().get("box").items)

    beside = of(slow, timeout=stretched(0.3), max_retries=1), sibling
    flow = chain(make, beside, last, session_id="s", checkpoint=EveryTask(), observers=[seen])
    assert flow.execute() == ["sibling"]


# --- a thread that a task has left behind writes into what is saved ---------------------


SIZE = 2 << 20  # of eight bytes each: four chunks


class Watched:
    """A live value whose pickle has the bytes of an array as they are in that moment."""

    def __init__(self, values: array[int]) -> None:
        self.values = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytearray, (pickle.PickleBuffer(self.values),)


@contextmanager
def written_to(values: array[int]) -> Iterator[None]:
    """Every part of it changes all the time."""
    ending = threading.Event()
    block = array("q", [0]) * (SIZE // 8)

    def write() -> None:
        turn = 0
        while not ending.is_set():
            turn += 1
            block[0] = turn
            start = turn % 8 * len(block)
            values[start] = values[start + len(block) // 2] = values[start + len(block) - 1] = turn

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.mark.usefixtures("checkpoints_alone")
def test_every_checkpoint_that_was_reported_verifies(store_url: str) -> None:
    saved_under("checkpoint", store_url)


@pytest.mark.usefixtures("checkpoints_alone")
def test_so_does_every_one_beside_a_journal(tmp_path: Path) -> None:
    saved_under("journal", str(tmp_path / "kept"))


def saved_under(durability: Any, store_url: str) -> None:
    values = array("q", [0]) * SIZE

    def step(context: Any) -> None:
        if context.cycle == 0:
            context.get_channel().set("values", Watched(values))
        context.checkpoint()

    with written_to(values):
        loop(4, step, store=store_url, durability=durability, rng=False).execute(max_steps=10)

    saved = [found.path for found in CheckpointManager.list_checkpoints("s", store=store_url)]
    assert len(saved) >= 4
    for path in saved:
        CheckpointManager.verify(path)


@pytest.mark.usefixtures("checkpoints_alone")
def test_what_comes_too_late_is_refused_by_the_store_and_kept_in_the_log(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Any] = []

    def step(context: Any) -> None:
        context.checkpoint({"n": context.cycle})
        if context.cycle == 1:
            in_folder = "://" not in store_url
            if in_folder:  # an owner cannot be fenced while its lock file is in place
                Path(store_url, ".s.lock").unlink()
            taken.append(open_store(store_url).acquire("s", take_over=not in_folder))

    with caplog.at_level(logging.ERROR), pytest.raises(Fenced):
        loop(5, step, store=store_url, rng=False).execute()

    (record,) = [record for record in caplog.records if "was refused" in record.getMessage()]
    assert (record.__dict__["session"], record.__dict__["step"]) == ("s", 2)
    assert record.__dict__["epoch"] < taken[0].epoch
    kept = CheckpointManager.list_checkpoints("s", store=store_url)
    assert [found.user_metadata["n"] for found in kept] == [0]
    taken[0].release()
