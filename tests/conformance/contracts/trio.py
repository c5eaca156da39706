"""What all contracts share: where a store is opened, and how patient a test is with it.

    class TestMyStore(StoreContract, ProcessContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return partial(MyStore, tmp_path / "checkpoints")

A store that lacks a part of them takes the pieces that it keeps, and says so in its docstring; nothing is
skipped when the tests run. Not here: what a store is (core/protocols.py), and the contract of drivers
(graflow_ckpt/testing/drivers.py), which is all that a new place has to keep.
"""

from __future__ import annotations

import array
import hashlib
import random
import time
from collections.abc import Callable

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Lease, PartWriter, Sink
from tests.trios import (
    all_of,
    listed,
    meta_of,
    named,
    own_name,
    owning,
    parts_of,
    path_of,
    put,
    put_meta,
    put_own,
    read,
    values_of,
    writer,
)

Opener = Callable[[], CheckpointStore]
"""Opens the store that is tested. Each call gives another handle to the same place."""


class Contract:
    """A class of tests gives `opener`; the two numbers are for stores that need time."""

    patience: float = 10.0
    """Seconds in which the session of a killed process becomes free."""

    lease_seconds: float = 0.0
    """After how many seconds of silence the store takes an owner for dead; 0: silence says nothing."""

    @pytest.fixture
    def opener(self) -> Opener:
        """An empty place. `ProcessContract` also sends it to other processes: it has to be pickled."""
        raise NotImplementedError("give the class a fixture `opener` that returns what opens your store")

    def acquired(self, store: CheckpointStore, session: str = "s") -> Lease:
        """The lease of a session whose owner was killed."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return store.acquire(session)
            except errors.SessionBusy:
                assert time.monotonic() < end, f"still busy after {self.patience} s, and its owner is dead"
                time.sleep(0.05)


def names_of_tests(suite: type[Contract]) -> list[str]:
    """The names of the tests that a class has: count them, so that none can get lost in silence."""
    return sorted(name for name in dir(suite) if name.startswith("test_"))


# --- the contract of a trio -------------------------------------------------------------


PARTS = ("pkl", "state.json", "meta.json")


class _Stop(Exception):
    """What a writer of these tests raises."""


class TrioContract(Contract):
    """A reader finds the former trio or the new one, whole; a deleted one is gone as a whole."""

    def test_what_was_put_is_read_back(self, opener: Opener) -> None:
        store = opener()

        path = put(store, "best", "one")

        found = read(store, path)
        assert (found.stage, found.values, found.state) == ("one", values_of("one"), b"one")
        assert found.meta == meta_of("one")

    def test_another_handle_reads_what_was_put(self, opener: Opener) -> None:
        store, other = opener(), opener()

        path = put(store, "best", "one")

        assert other.url == store.url
        assert read(other, path).stage == "one"

    def test_a_path_means_the_same_with_the_suffix_of_any_part(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "v1.2.pkl", "one")

        for suffix in ("", ".pkl", ".state.json", ".meta.json"):
            same = path.removesuffix(".pkl") + suffix
            assert read(store, same).stage == "one"
        put(store, "v1.2", "two")
        assert read(store, path).stage == "two"
        assert len(listed(store)) == 1

    def test_what_is_put_again_is_replaced_as_a_whole(self, opener: Opener) -> None:
        store = opener()
        for number, size in enumerate((300_000, 10, 0, 100_000)):
            path = put(store, "best", f"n{number}", size=size)

            assert read(store, path).values == values_of(f"n{number}", size)
        assert len(listed(store)) == 1

    def test_a_meta_put_alone_keeps_the_parts_of_its_stage(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")
        sealed_anew = meta_of("one", sequence=2)

        put_meta(store, "best", sealed_anew, "one")

        assert read(store, path).meta == sealed_anew
        assert read(store, path).values == values_of("one")

    def test_a_meta_put_alone_over_another_stage_is_refused_and_nothing_changes(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")

        with pytest.raises(
            errors.CheckpointError
        ):  # whoever sealed it has looked at what is not there any more
            put_meta(store, "best", meta_of("two"), "two")

        assert read(opener(), path).values == values_of("one")

    def test_a_list_that_names_a_part_twice_is_refused_and_nothing_changes(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")
        first, *rest = parts_of("two")

        with pytest.raises(ValueError, match=first[0]):
            store.put(path, [first, first, *rest], lease=None, stage="two")

        assert read(opener(), path).values == values_of("one")

    def test_nothing_is_seen_of_a_trio_before_its_last_part_is_written(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path = path_of(store, "best")
        seen: list[object] = []

        def look(sink: Sink) -> None:
            with pytest.raises(errors.CheckpointNotFound):
                other.meta(path)
            seen.append(listed(other))
            writer(meta_of("one"))(sink)

        store.put(path, [*parts_of("one")[:2], ("meta.json", look)], lease=None, stage="one")

        assert seen == [[]]
        assert read(other, path).stage == "one"

    def test_the_former_trio_is_read_until_the_last_part_is_written(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path = put(store, "best", "one")
        seen: list[str] = []

        def look(sink: Sink) -> None:
            seen.append(read(other, path).stage)
            writer(meta_of("two"))(sink)

        store.put(path, [*parts_of("two")[:2], ("meta.json", look)], lease=None, stage="two")

        assert seen == ["one"]
        assert read(other, path).stage == "two"

    @pytest.mark.parametrize("failing", PARTS)
    def test_a_writer_that_fails_leaves_the_former_trio(self, opener: Opener, failing: str) -> None:
        store = opener()
        path = put(store, "best", "one")

        with pytest.raises(_Stop):
            store.put(path, _failing("two", failing, _Stop()), lease=None, stage="two")

        assert read(store, path).stage == "one"
        put(store, "best", "two")
        assert read(opener(), path).stage == "two"

    @pytest.mark.parametrize("failing", PARTS)
    def test_a_writer_that_fails_leaves_nothing_where_nothing_was(self, opener: Opener, failing: str) -> None:
        store = opener()

        with pytest.raises(KeyboardInterrupt):
            store.put(
                path_of(store, "best"), _failing("one", failing, KeyboardInterrupt()), lease=None, stage="one"
            )

        assert _is_absent(opener(), "best")

    @pytest.mark.parametrize(
        "parts", [["meta.json", "pkl"], ["pkl"], ["other", "meta.json"], ["pkl", "state.json"]]
    )
    def test_parts_that_make_no_trio_are_refused(self, opener: Opener, parts: list[str]) -> None:
        store = opener()

        with pytest.raises(ValueError, match="part"):
            store.put(
                path_of(store, "best"), [(part, writer(b"x")) for part in parts], lease=None, stage="one"
            )

        assert _is_absent(store, "best")

    def test_what_is_not_there_is_not_found(self, opener: Opener) -> None:
        store = opener()
        put(store, "best", "one")

        for name in ("bes", "best1", own_name()):
            assert _is_absent(store, name)
            assert store.delete(path_of(store, name)) is False
        assert listed(store) == ["best"]

    def test_a_part_that_was_never_written_is_corrupt_and_not_missing(self, opener: Opener) -> None:
        store = opener()
        path = path_of(store, "best")

        store.put(path, parts_of("one")[1:], lease=None, stage="one")

        with pytest.raises(errors.CheckpointCorrupt):
            store.open(path, "pkl", "one")
        assert all_of(store.open(path, "state.json", "one")) == b"one"

    def test_deleting_takes_all_of_it_and_says_whether_it_was_there(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")

        assert store.delete(path) is True

        assert store.delete(path) is False
        for handle in (store, opener()):
            assert _is_absent(handle, "best", "one")
            assert listed(handle) == []

    @pytest.mark.parametrize("many", [False, True])
    def test_parts_of_a_deleted_trio_do_not_come_back(self, opener: Opener, many: bool) -> None:
        store = opener()
        path = put(store, "best", "one")
        assert store.delete_many([path]) == 1 if many else store.delete(path)

        put_meta(store, "best", meta_of("one"), "one")

        for part in ("pkl", "state.json"):
            with pytest.raises(errors.CheckpointCorrupt):
                store.open(path, part, "one")

    def test_deleting_leaves_the_others(self, opener: Opener) -> None:
        store = opener()
        kept = [put(store, name, f"n{at}") for at, name in enumerate(("best", "best1", "bes", own_name()))]
        gone = put(store, "best.old", "old")

        store.delete(gone)

        assert [read(store, path).stage for path in kept] == ["n0", "n1", "n2", "n3"]

    def test_a_part_that_is_being_read_is_not_mixed_with_its_successor(self, opener: Opener) -> None:
        store = opener()
        old = values_of("one", 9_000_000)
        path = put(store, "best", "one", size=len(old))
        source = store.open(path, "pkl", "one")
        first = memoryview(bytearray(1000))
        count = source.readinto(first)

        put(store, "best", "two", size=len(old))

        try:
            rest = all_of(source)
        except errors.CheckpointCorrupt:
            return  # it says so: the reader looks at meta again
        assert bytes(first[:count]) + rest == old

    def test_a_probe_leaves_nothing_and_may_be_repeated(self, opener: Opener) -> None:
        store = opener()

        store.probe()
        store.probe()

        assert listed(store) == []
        assert isinstance(store.synced, bool)
        assert isinstance(store.shared, bool)

    def test_a_path_that_names_nothing_is_refused(self, opener: Opener) -> None:
        store = opener()

        for path in (path_of(store, ""), path_of(store, ".pkl")):
            with pytest.raises(errors.CheckpointError):
                store.put(path, parts_of("one"), lease=None, stage="one")
        assert listed(store) == []

    def test_errors_name_the_path_and_say_what_to_do(self, opener: Opener) -> None:
        store = opener()

        with pytest.raises(errors.CheckpointNotFound) as missing:
            store.meta(path_of(store, "best"))

        assert "best" in str(missing.value)
        assert "best" in missing.value.ids["path"]
        assert isinstance(missing.value, FileNotFoundError)


def _failing(stage: str, part: str, error: BaseException) -> list[tuple[str, PartWriter]]:
    def fail(sink: Sink) -> None:
        sink.write(b"half a part")
        raise error

    return [(name, fail if name == part else write) for name, write in parts_of(stage, size=100_000)]


def _is_absent(store: CheckpointStore, name: str, stage: str = "one") -> bool:
    path = path_of(store, name)
    with pytest.raises(errors.CheckpointNotFound):
        store.meta(path)
    for part in ("pkl", "state.json"):
        with pytest.raises(errors.CheckpointNotFound):
            store.open(path, part, stage)
    return name.removesuffix(".pkl") not in listed(store)


# --- the bytes of one part -----------------------------------------------------------------


LARGE = (20 << 20) + 7


class BytesContract(Contract):
    """Sizes, buffers, pieces. Nothing is dropped, changed, or kept by reference."""

    @pytest.mark.parametrize(
        "size", [0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, (1 << 20) + 3, (4 << 20), (8 << 20) + 1]
    )
    def test_a_part_of_any_size_comes_back(self, opener: Opener, size: int) -> None:
        store, data = opener(), random.Random(size).randbytes(size)

        path = _put_part(store, writer(data))

        source = store.open(path, "pkl", "one")
        assert source.size == size
        assert _same(all_of(source), data)

    def test_a_large_part_written_at_once_comes_back_in_order(self, opener: Opener) -> None:
        store, data = opener(), random.Random(1).randbytes(LARGE)

        path = _put_part(store, lambda sink: _write_whole(sink, data))

        assert store.open(path, "pkl", "one").size == LARGE
        assert _same(all_of(store.open(path, "pkl", "one"), 3_000_001), data)

    def test_many_small_writes_are_one_part(self, opener: Opener) -> None:
        store, rng = opener(), random.Random(2)
        pieces = [rng.randbytes(rng.randrange(60)) for _ in range(20_000)]

        def write(sink: Sink) -> None:
            for piece in pieces:
                _write_whole(sink, piece)

        path = _put_part(store, write)

        assert _same(all_of(store.open(path, "pkl", "one")), b"".join(pieces))

    def test_every_kind_of_buffer_counts_in_bytes(self, opener: Opener) -> None:
        store, numbers = opener(), array.array("I", range(50_000))
        kinds: list[Buffer] = [b"bytes", bytearray(b"bytearray"), memoryview(b"view"), memoryview(numbers)]
        kinds += [memoryview(b"0123456789")[2:5], memoryview(bytes(6)).cast("B", (2, 3)), b""]

        def write(sink: Sink) -> None:
            for data in kinds:
                _write_whole(sink, data)

        path = _put_part(store, write)

        expected = b"".join(data.tobytes() if isinstance(data, memoryview) else bytes(data) for data in kinds)
        assert _same(all_of(store.open(path, "pkl", "one")), expected)

    def test_a_buffer_may_be_used_again_after_a_write(self, opener: Opener) -> None:
        store, buffer = opener(), bytearray(200_000)

        def write(sink: Sink) -> None:
            for number in range(60):
                buffer[:] = bytes([number]) * len(buffer)
                sink.write(memoryview(buffer)[: 1000 * (number + 1)])
            buffer[:] = b"\xff" * len(buffer)

        path = _put_part(store, write)

        expected = b"".join(bytes([number]) * 1000 * (number + 1) for number in range(60))
        assert _same(all_of(store.open(path, "pkl", "one")), expected)

    def test_a_part_is_read_in_pieces_of_any_size(self, opener: Opener) -> None:
        store, data = opener(), random.Random(3).randbytes(5_000_000)
        path = _put_part(store, writer(data))

        for step in (997, 65_537, 6_000_000):
            assert _same(all_of(store.open(path, "pkl", "one"), step), data)

    def test_the_end_of_a_part_stays_the_end(self, opener: Opener) -> None:
        store = opener()
        path = _put_part(store, writer(b"short"))
        source, buffer = store.open(path, "pkl", "one"), memoryview(bytearray(100))

        found = [source.readinto(buffer) for _ in range(3)]
        source.close()
        source.close()

        assert found == [5, 0, 0]
        assert bytes(buffer) == b"short" + bytes(95)

    def test_two_who_read_one_part_do_not_disturb_each_other(self, opener: Opener) -> None:
        store, data = opener(), random.Random(4).randbytes(300_000)
        path = _put_part(store, writer(data))
        one, two = store.open(path, "pkl", "one"), store.open(path, "pkl", "one")
        first = memoryview(bytearray(1000))

        count = one.readinto(first)
        whole = all_of(two)

        assert _same(whole, data)
        assert _same(bytes(first[:count]) + all_of(one), data)

    def test_a_large_meta_comes_back_and_is_listed_whole(self, opener: Opener) -> None:
        store = opener()
        meta = meta_of("one")[:-1] + b', "note": "' + b"x" * 400_000 + b'"}'

        path = put_meta(store, "best", meta)

        assert _same(store.meta(path), meta)
        assert _same(next(iter(store.list()))[1], meta)


def _put_part(store: CheckpointStore, write: PartWriter) -> str:
    path = path_of(store, "best")
    store.put(path, [("pkl", write), ("meta.json", writer(meta_of("one")))], lease=None, stage="one")
    return path


def _write_whole(sink: Sink, data: Buffer) -> None:
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    assert sink.write(data) == size


def _same(found: bytes, expected: bytes) -> bool:
    """Compared by digest: pytest would print megabytes."""
    assert len(found) == len(expected)
    assert hashlib.sha256(found).hexdigest() == hashlib.sha256(expected).hexdigest()
    return True


class AlongContract(Contract):
    """Of a store that can let others go in the commit of a save."""

    def test_what_is_to_go_with_a_save_is_gone_when_that_is_there(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            one, two = put_own(store, lease, 1), put_own(store, lease, 2)
            put_own(store, lease, 3)
            put_own(store, lease, 4, drops=[one, two, path_of(store, own_name(sequence=9))])

            assert listed(opener()) == [named(own_name(sequence=n)) for n in (4, 3)]
            for path in (one, two):
                with pytest.raises(errors.CheckpointNotFound):
                    opener().meta(path)

    def test_what_belongs_to_others_does_not_go_with_a_save(self, opener: Opener) -> None:
        store = opener()
        with owning(store, "t") as theirs, owning(store) as lease:
            others = [put_own(store, theirs, 1), put(store, "best", "one")]
            path = put_own(store, lease, 1, drops=others)
            put(store, "last", "two", lease=lease, drops=[path])
            put(store, "free", "three", drops=[path])

            assert sorted(listed(store)) == sorted(
                ["best", "last", "free", named(own_name()), named(own_name("t"))]
            )

    def test_a_save_over_a_former_one_may_name_it_as_what_goes(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            path = put_own(store, lease, 1, "former")
            put_own(store, lease, 1, "newer", drops=[path])

            assert read(opener(), path).stage == "newer"

    @pytest.mark.parametrize("why", ["a writer fails", "taken over"])
    def test_with_a_save_that_is_refused_nothing_goes(self, opener: Opener, why: str) -> None:
        store = opener()
        lease = store.acquire("s")
        path = put_own(store, lease, 1)

        def fails(sink: Sink) -> None:
            raise _Stop

        if why == "taken over":
            with owning(opener(), take_over=True), pytest.raises(errors.Fenced):
                put_own(store, lease, 2, drops=[path])
        else:
            parts = [("pkl", fails), ("state.json", writer(b"{}")), ("meta.json", writer(b"{}"))]
            with pytest.raises(_Stop):
                store.put(
                    path_of(store, own_name(sequence=2)),
                    parts,
                    lease=lease,
                    stage="two",
                    drops=lambda: [path],
                )

        assert listed(opener()) == [named(own_name())]
        lease.release()
