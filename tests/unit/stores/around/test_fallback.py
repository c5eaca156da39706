"""A fallback: where saves go while their store is away, and how they come to it when it is back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import Event, EveryTask, KeepLast, OfAll, TaskExecutionContext
from graflow_ckpt.core.errors import CheckpointNotFound, Fenced, ServerGone
from graflow_ckpt.core.protocols import CheckpointStore, Sink
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.around.patience import Breaker
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.loops import chain
from tests.trios import (
    listed,
    meta_of,
    named,
    own_name,
    owning,
    parts_of,
    path_of,
    put,
    put_meta,
    read,
    values_of,
    writer,
)
from tests.unit.stores.interruptions import happening, lost
from tests.unit.stores.outages import Cable, Far


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    yield Far(MemoryStore("memory://fallback"), Cable(tmp_path / "cut"))
    MemoryStore("memory://fallback").forget()


@pytest.fixture
def store(far: Far, tmp_path: Path, clock: Clock) -> Fallback:
    return opened(far, tmp_path, clock)


def opened(far: Far, tmp_path: Path, clock: Clock) -> Fallback:
    return Fallback(far, str(tmp_path / "folder"), breaker=Breaker(1, 5.0, clock=clock))


def put_of(
    store: CheckpointStore, lease: object, sequence: int, size: int = 64, epoch: int | None = None,
    name: str = "",
) -> str:  # fmt: skip
    """As a session does it: its epoch is in the meta. `epoch`: that of a copy, or of one without a lease."""
    name, stage = name or own_name("s", sequence), f"n{sequence}"
    epoch = epoch or lease.epoch  # type: ignore[attr-defined]
    parts = parts_of(stage, sequence=sequence, size=size)
    meta = meta_of(stage, sequence=sequence, size=size).replace(b'"epoch": 1', f'"epoch": {epoch}'.encode())
    path = path_of(store, name)
    store.put(path, [*parts[:2], ("meta.json", writer(meta))], lease=lease, stage=stage)  # type: ignore[arg-type]
    return path


@contextmanager
def cut_off(store: Fallback, far: Far, *sequences: int) -> Iterator[Any]:
    """A session that has saved these while its store was away, and goes on like that."""
    with owning(store) as lease:
        far.cable.cut()
        for sequence in sequences:
            put_of(store, lease, sequence)
        yield lease


def back(far: Far, clock: Clock) -> None:
    """The store can be reached, and it is time to ask for it."""
    far.cable.mend()
    clock.now = 5.0


def waiting(store: Fallback) -> list[str]:
    return [named(entry.base) for entry in store.waits.waiting()]


def names(*sequences: int) -> list[str]:
    return [named(own_name("s", sequence)) for sequence in sequences]


# --- away ------------------------------------------------------------------------------


def test_while_it_is_there_nothing_is_kept_beside_it(store: Fallback, far: Far, tmp_path: Path) -> None:
    with owning(store) as lease:
        put_of(store, lease, 1)

    assert listed(far.inner) == names(1)
    assert not (tmp_path / "folder").exists()


def test_while_it_is_away_saves_go_to_the_folder_and_are_accepted(
    store: Fallback, far: Far, tmp_path: Path
) -> None:
    with owning(store) as lease:
        put_of(store, lease, 1)
        far.cable.cut()
        path = put_of(store, lease, 2)

        assert store.synced is False
        assert read(store, path).stage == "n2"
        assert waiting(store) == names(2)
        assert listed(far.inner) == names(1)
    assert (next((tmp_path / "folder").iterdir()) / "store").read_text() == f"{far.url}\n"


def test_while_it_is_away_it_is_not_asked_by_every_save(store: Fallback, far: Far, clock: Clock) -> None:
    with cut_off(store, far, 1) as lease:
        far.calls.clear()

        for sequence in range(2, 5):
            put_of(store, lease, sequence)

        assert far.calls == []
        clock.now = 5.0
        put_of(store, lease, 5)
        assert far.calls == ["put"]
        assert waiting(store) == names(5, 4, 3, 2, 1)


def test_what_is_not_in_the_folder_cannot_be_told_while_it_is_away(store: Fallback, far: Far) -> None:
    path = put(store, "best", "one")
    far.cable.cut()

    for ask in (
        lambda: list(store.list()),
        lambda: store.meta(path),
        lambda: store.delete(path),
        lambda: store.acquire("s"),
        store.probe,
    ):
        with pytest.raises(ServerGone):
            ask()


def test_a_checkpoint_in_the_folder_can_be_deleted_while_it_is_away(store: Fallback, far: Far) -> None:
    with owning(store) as lease:
        far.cable.cut()
        path = put_of(store, lease, 1)

        assert store.delete(path) is True

        assert waiting(store) == []
        with pytest.raises((CheckpointNotFound, ServerGone)):
            store.meta(path)


def test_what_a_writer_raises_is_no_outage(store: Fallback, far: Far) -> None:
    def fails(sink: Sink) -> None:
        raise ConnectionResetError("in the pickle")

    with owning(store) as lease, pytest.raises(ConnectionResetError):
        store.put(path_of(store, own_name()), [("pkl", fails), *parts_of("x")[1:]], lease=lease, stage="x")

    assert waiting(store) == []


def test_a_meta_alone_does_not_fall_back(store: Fallback, far: Far) -> None:
    far.cable.cut()

    with pytest.raises(ServerGone):
        put_meta(store, "best", b"{}")

    assert waiting(store) == []


def test_a_copy_of_what_another_owner_has_made_does_not_wait(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    store.acquire("s").release()
    with owning(store) as lease:
        far.cable.cut()
        with pytest.raises(ServerGone, match="cannot be reached"):
            put_of(store, lease, 1, epoch=1)
        assert waiting(store) == []
        back(far, clock)
        for sequence in (1, 2):
            put_of(store, lease, sequence, epoch=1)

    with owning(opened(far, tmp_path, clock)):
        assert listed(far.inner) == names(2, 1)
    assert not Path(store.waits.refused.folder).exists()


def test_who_has_released_saves_nothing_in_the_folder_either(store: Fallback, far: Far) -> None:
    lease = store.acquire("s")
    lease.release()
    far.cable.cut()

    with pytest.raises(Fenced):
        put_of(store, lease, 1)
    assert waiting(store) == []


# --- back ------------------------------------------------------------------------------


def test_the_first_save_that_finds_it_back_hands_over_what_waits_in_order(
    store: Fallback, far: Far, clock: Clock
) -> None:
    with cut_off(store, far, 1, 2, 3) as lease:
        back(far, clock)

        put_of(store, lease, 4)

        assert waiting(store) == []
        assert listed(far.inner) == names(4, 3, 2, 1)
        assert list(far.inner.list("s")) == sorted(far.inner.list("s"), reverse=True)
        assert read(far.inner, path_of(far.inner, own_name("s", 2))).values == values_of("n2")


def test_a_session_that_ends_hands_over_what_waits_at_once(store: Fallback, far: Far) -> None:
    with cut_off(store, far, 1):
        far.cable.mend()

    assert listed(far.inner) == names(1)
    assert waiting(store) == []


def test_a_session_that_ends_while_it_is_away_says_that_something_waits(
    store: Fallback, far: Far, caplog: pytest.LogCaptureFixture
) -> None:
    with cut_off(store, far, 1):
        pass

    assert "ends while checkpoints of it wait" in caplog.text
    assert waiting(store) == names(1)


def test_the_next_owner_hands_over_what_the_last_one_has_left(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    with cut_off(store, far, 1, 2):
        pass
    back(far, clock)

    with owning(opened(far, tmp_path, clock)) as lease:
        assert listed(far.inner) == names(2, 1)
        put_of(store, lease, 3)

    assert listed(store) == names(3, 2, 1)
    assert waiting(store) == []


def test_it_goes_away_again_in_the_middle_and_nothing_is_lost_or_out_of_order(
    store: Fallback, far: Far, clock: Clock
) -> None:
    with cut_off(store, far, 1, 2, 3) as lease:
        back(far, clock)
        real, handed = far.over, []

        def second_fails(name: str, call):  # type: ignore[no-untyped-def]
            if name == "put":
                handed.append(name)
                if len(handed) == 2:
                    far.cable.cut()
            return real(name, call)

        far.over = second_fails  # type: ignore[method-assign]
        put_of(store, lease, 4)

        assert listed(far.inner) == names(1)
        assert waiting(store) == names(4, 3, 2)
        far.cable.mend()
        clock.now = 10.0
        put_of(store, lease, 5)
        assert listed(far.inner) == names(5, 4, 3, 2, 1)


def test_what_was_handed_over_and_not_yet_taken_away_is_handed_over_once_more(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    with owning(store) as lease:
        far.fails = [("put", True)]  # the store has it, and nobody was told
        put_of(store, lease, 1)
        assert listed(far.inner) == waiting(store) == names(1)

    clock.now = 5.0
    with owning(opened(far, tmp_path, clock)):
        pass

    assert listed(store) == names(1)
    assert waiting(store) == []


def test_what_waits_is_listed_with_the_rest_and_each_name_once(
    store: Fallback, far: Far, clock: Clock
) -> None:
    with owning(store) as lease:
        put_of(store, lease, 1)
        far.fails = [("put", True)]
        put_of(store, lease, 2)
        clock.now = 5.0

        assert listed(store) == listed(store, "s") == names(2, 1)
        assert listed(store, "t") == []
        assert listed(store, pattern="*_step_2_*") == names(2)


@pytest.mark.parametrize("moment", ["list", "next"])  # before and after the store was looked through
def test_what_is_handed_over_while_somebody_lists_is_listed(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock, moment: str
) -> None:
    lease = store.acquire("s")
    far.cable.cut()
    path = put_of(store, lease, 1)
    back(far, clock)
    other, real = opened(far, tmp_path, clock), far.over

    def handed_over(name: str, call):  # type: ignore[no-untyped-def]
        found = real(name, call)
        if name == moment:
            far.over = real  # type: ignore[method-assign]
            store.hand_over_now(lease)
        return found

    far.over = handed_over  # type: ignore[method-assign]
    assert listed(other) == names(1)
    assert waiting(other) == []
    assert other.meta(path) == store.meta(path)
    lease.release()


def test_saves_without_a_lease_fall_back_too(store: Fallback, far: Far, clock: Clock) -> None:
    far.cable.cut()
    put(store, "best", "one")
    put(store, "best", "two")
    assert waiting(store) == ["best"]
    back(far, clock)

    put(store, "other", "three")

    assert read(far.inner, path_of(far.inner, "best")).stage == "two"
    assert waiting(store) == []


def test_a_save_without_a_lease_is_handed_over_whoever_has_gone_on(
    store: Fallback, far: Far, clock: Clock
) -> None:
    with owning(far), owning(far, take_over=True) as later:
        far.cable.cut()
        put_of(store, None, 1, epoch=1)
        far.cable.mend()
        put_of(far, later, 2)
        clock.now = 5.0

        put_of(store, None, 3, epoch=1)

    assert {*listed(far.inner)} == {*names(1, 2, 3)}
    assert waiting(store) == []


@pytest.mark.parametrize(("there", "left"), [("s", "n2"), ("of another session", "n1")])
def test_a_save_without_a_lease_does_not_replace_a_later_one_of_that_name(
    store: Fallback, far: Far, clock: Clock, there: str, left: str
) -> None:
    far.cable.cut()
    put_of(store, None, 1, epoch=1, name="best")
    far.cable.mend()
    if there == "s":
        put_of(far, None, 2, epoch=1, name="best")
    else:
        put(far, "best", "n2", session="t", sequence=2)
    clock.now = 5.0

    put_of(store, None, 3, epoch=1)

    assert read(far.inner, path_of(far.inner, "best")).stage == left
    assert waiting(store) == []


# --- somebody else has gone on ----------------------------------------------------------


def test_nothing_is_handed_over_to_a_session_with_which_somebody_has_gone_on(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with cut_off(store, far, 1):
        pass
    far.cable.mend()
    elsewhere = Fallback(far, str(tmp_path / "another machine"), breaker=Breaker(1, 5.0, clock=clock))
    with owning(elsewhere) as lease:
        put_of(elsewhere, lease, 7)
    clock.now = 5.0

    with owning(opened(far, tmp_path, clock)) as lease:
        assert listed(far.inner) == names(7)
        put_of(store, lease, 8)

    assert listed(store) == names(8, 7)
    assert waiting(store) == []
    assert listed(store.waits.refused) == names(1)
    assert "another owner has continued it" in caplog.text


def test_an_owner_that_has_written_nothing_has_not_gone_on(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    with cut_off(store, far, 1):
        pass
    far.cable.mend()
    with owning(far):
        pass
    clock.now = 5.0

    with owning(opened(far, tmp_path, clock)):
        pass

    assert listed(far.inner) == names(1)


def test_an_owner_that_was_taken_over_meanwhile_is_refused_and_so_is_what_it_has_saved(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    old = store.acquire("s")
    far.cable.cut()
    put_of(store, old, 1)
    far.cable.mend()
    with owning(far, take_over=True) as new:
        put_of(far, new, 2)
        clock.now = 5.0

        with pytest.raises(Fenced):
            put_of(store, old, 3)
        old.release()
        assert waiting(store) == names(1)  # nobody knows yet what the new one makes of it
        put_of(far, new, 4)

    with owning(opened(far, tmp_path, clock)):
        assert listed(far.inner) == names(4, 2)
    assert waiting(store) == []
    assert listed(store.waits.refused) == names(1)


def test_after_a_takeover_what_waits_stays_until_its_owner_has_ended(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    old = store.acquire("s")
    far.cable.cut()
    put_of(store, old, 1)
    back(far, clock)

    with owning(opened(far, tmp_path, clock), take_over=True):
        assert listed(far.inner) == []
        assert "what waits of session s stays" in caplog.text
        with pytest.raises(Fenced):
            put_of(store, old, 2)
        old.release()

    with owning(opened(far, tmp_path, clock)):
        assert listed(far.inner) == names(1)
    assert waiting(store) == []


def test_a_store_that_has_lost_everything_gets_what_waits(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock
) -> None:
    old = store.acquire("s")
    far.cable.cut()
    put_of(store, old, 1)
    far.cable.mend()
    MemoryStore("memory://fallback").forget()
    clock.now = 5.0
    with pytest.raises(Fenced):
        put_of(store, old, 2)
    old.release()

    with owning(opened(far, tmp_path, clock)):
        assert listed(far.inner) == names(1)


def test_what_is_damaged_in_the_folder_is_kept_aside_and_stops_nothing(
    store: Fallback, far: Far, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with cut_off(store, far, 1, 2) as lease:
        Path(f"{store.waits.owned.folder}/{names(1)[0]}.pkl").unlink()
        back(far, clock)

        put_of(store, lease, 3)

    assert listed(far.inner) == names(3, 2)
    assert "is not handed over" in caplog.text


@pytest.mark.parametrize("by", ["its owner", "the next owner"])
def test_what_the_store_does_not_take_waits_on_and_keeps_no_other_save(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    small = Far(MemoryStore("memory://fallback", max_bytes=3000), Cable(tmp_path / "cut"))
    store = opened(small, tmp_path, clock)
    lease = store.acquire("s")
    small.cable.cut()
    put_of(store, lease, 1, size=10_000)
    if by == "the next owner":
        lease.release()
        store = opened(small, tmp_path, clock)
    back(small, clock)
    if by == "the next owner":
        lease = store.acquire("s")

    put_of(store, lease, 2)

    assert listed(small.inner) == names(2)
    assert waiting(store) == names(1)
    assert "No room" in caplog.text
    lease.release()
    MemoryStore("memory://fallback").forget()


@pytest.mark.parametrize("what", ["Ctrl-C", "an outage"])
def test_a_session_that_could_not_be_released_can_be_continued_by_this_process(
    store: Fallback, far: Far, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0)
    lease, real = store.acquire("s"), far.over
    far.cable.cut()
    put_of(store, lease, 1)

    def interrupted(name: str, call):  # type: ignore[no-untyped-def]
        raise KeyboardInterrupt

    if what == "Ctrl-C":
        far.over = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            lease.release()
        far.over = real  # type: ignore[method-assign]
    else:
        with happening(far.inner, 0, lost, for_good=True):
            lease.release()
    back(far, clock)

    with owning(opened(far, tmp_path, clock)):
        assert listed(far.inner) == names(1)
    assert waiting(store) == []


# --- by address ------------------------------------------------------------------------


def test_an_address_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "spool")
    store = open_store(f"fallback.{folder.replace('/', '%2F')}+memory://fallback")

    assert isinstance(store, Fallback)
    assert str(store.waits.where).startswith(f"{folder}/")
    assert put(store, "best", "one") == f"fallback.{folder.replace('/', '%2F')}+memory://fallback/best"
    monkeypatch.setenv("GRAFLOW_CKPT_FALLBACK", str(tmp_path / "set"))
    other = open_store("fallback+memory://fallback")
    assert isinstance(other, Fallback)
    assert str(other.waits.where).startswith(str(tmp_path / "set"))
    MemoryStore("memory://fallback").forget()


def test_everything_that_nobody_runs_is_handed_over_when_somebody_asks(
    store: Fallback, far: Far, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with cut_off(store, far, 1):
        put(store, "best", "one")
    back(far, clock)

    with caplog.at_level(logging.INFO):
        left = store.hand_over_all()

    assert left == 0
    assert sorted(listed(far.inner)) == ["best", *names(1)]


def test_one_that_is_damaged_does_not_keep_the_others_from_being_handed_over(
    store: Fallback, far: Far, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with cut_off(store, far, 1) as lease:
        damaged = put_of(store, lease, 2)
    for file in store.waits.where.glob(f"owned/{names(2)[0]}.meta.json"):
        file.write_bytes(b"{")
    back(far, clock)

    left = store.hand_over_all()

    assert left == 1
    assert listed(far.inner) == names(1)
    assert store.meta(damaged) == b"{"
    assert "what waits of session '' stays" in caplog.text


# --- a workflow ------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["auto", "checkpoint"])
def test_a_workflow_goes_through_an_outage_and_is_resumed_after_it(
    far: Far,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    durability: Any,
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    saved: list[int] = []

    def run(fails: bool) -> int:
        store = opened(far, tmp_path, clock)

        def step(context: TaskExecutionContext) -> int:
            number: int = context.get_channel().get("number", default=0) + 1
            context.get_channel().set("number", number)
            if number == 3:
                far.cable.cut()
            if number == 7 and fails:
                raise OSError("seven")
            if number < 8:
                context.next_iteration()
            return number

        flow = chain(
            step,
            session_id="s",
            store=store,
            durability=durability,
            checkpoint=EveryTask(),
            keep=OfAll(KeepLast(2)),
            observers=[watch],
        )
        return int(flow.execute())

    def watch(event: Event) -> None:
        if event.kind == "checkpoint_saved":
            saved.append(event.step)

    with pytest.raises(OSError, match="seven"):
        run(fails=True)
    assert [step for step in saved if step] == [1, 2, 3, 4, 5, 6, 6]
    assert len([r for r in caplog.records if "old checkpoints stay" in r.getMessage()]) == 1
    back(far, clock)

    assert run(fails=False) == 8
    assert len(listed(far.inner)) == 2
