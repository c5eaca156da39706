"""The contract of contents: each is stored once, stays as long as a checkpoint holds it, and no longer.

Only for stores that have `contents`. Not here: what is in them; a store believes a name, and readers compare.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Lease, PartWriter, Sink
from graflow_ckpt.testing.drivers import at_once
from tests.conformance.companion import Companion
from tests.conformance.contracts.trio import Contract, Opener
from tests.trios import (
    all_of,
    called,
    content,
    contents_of,
    held,
    listed,
    meta_holding,
    name_of,
    own_name,
    owning,
    path_of,
    pieces,
    put,
    put_holding,
    put_meta,
    there,
    writer,
)  # fmt: skip

ONE, TWO, THREE = content(1), content(2), content(3)


class ContentContract(Contract):
    """As one process sees it."""

    def test_what_goes_with_a_save_leaves_the_contents_that_this_one_holds(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            former = put_holding(store, own_name(), "one", [ONE, TWO], lease=lease)
            name = own_name(sequence=2)
            path = put_holding(store, name, "two", [TWO], lease=lease, sequence=2, drops=[former])

            assert (held(store, path), there(store, [ONE, TWO], name)) == ([TWO], {TWO})

    def test_contents_are_there_with_their_checkpoint_in_every_handle(self, opener: Opener) -> None:
        path = put_holding(opener(), called("best"), "one", [ONE, TWO])

        assert held(opener(), path) == [ONE, TWO]
        assert there(opener(), [ONE, TWO, THREE]) == {ONE, TWO}

    def test_what_is_there_is_found_within_its_scope_and_nowhere_else(self, opener: Opener) -> None:
        store = opener()
        best = put_holding(store, "best", "one", [ONE])

        for name in ("other", own_name("s"), own_name("t")):
            scopes = {contents_of(store).scope(path) for path in (best, path_of(store, name))}
            assert (there(store, [ONE], name) == {ONE}) is (len(scopes) == 1)

    @pytest.mark.parametrize(
        "size", [1, 65_535, 1 << 20, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (13 << 20) + 7]
    )
    def test_a_content_of_any_size_comes_back(self, opener: Opener, size: int) -> None:
        data = content(4, size)

        path = put_holding(opener(), called("best"), "one", [data, ONE])

        assert held(opener(), path) == [data, ONE]

    @pytest.mark.parametrize("first", ["a", "b"])
    def test_what_two_hold_stays_until_both_are_deleted(self, opener: Opener, first: str) -> None:
        store = opener()
        put_holding(store, called("a"), "one", [ONE, TWO])
        put_holding(opener(), called("b"), "two", [ONE, THREE])
        second = ({"a", "b"} - {first}).pop()
        own = {"a": TWO, "b": THREE}

        assert opener().delete(path_of(store, called(first)))

        assert held(store, path_of(store, called(second))) == [ONE, own[second]]
        assert there(store, [ONE, TWO, THREE]) == {ONE, own[second]}
        assert store.delete(path_of(store, called(second)))
        assert there(opener(), [ONE, TWO, THREE]) == set()

    def test_what_is_replaced_lets_go_of_what_the_new_one_does_not_hold(self, opener: Opener) -> None:
        store = opener()
        put_holding(store, called("best"), "one", [ONE, TWO])

        path = put_holding(store, called("best"), "two", [TWO, THREE])

        assert held(opener(), path) == [TWO, THREE]
        assert there(store, [ONE, TWO, THREE]) == {TWO, THREE}
        put(store, called("best"), "three")
        assert there(opener(), [ONE, TWO, THREE]) == set()

    def test_a_meta_put_alone_keeps_the_contents_of_its_stage(self, opener: Opener) -> None:
        store = opener()
        path = put_holding(store, called("best"), "one", [ONE, TWO])

        put_meta(store, called("best"), meta_holding("one", [name_of(TWO), name_of(ONE)]), stage="one")

        assert held(opener(), path) == [TWO, ONE]

    def test_a_meta_that_names_what_is_not_there_is_not_committed(self, opener: Opener) -> None:
        store = opener()
        path = put_holding(store, called("best"), "one", [ONE])

        with pytest.raises(GraflowError):
            put_meta(store, called("best"), meta_holding("two", [name_of(ONE), name_of(THREE)]), stage="two")
        with pytest.raises(GraflowError):
            put_meta(store, called("other"), meta_holding("three", [name_of(THREE)]), stage="three")

        assert held(opener(), path) == [ONE]
        assert listed(store) == [called("best")]

    def test_a_save_that_fails_leaves_nothing(self, opener: Opener) -> None:
        store = opener()
        put_holding(store, called("best"), "one", [ONE])
        saving = contents_of(store).saving(path_of(store, called("best")), lease=None, stage="two")

        def values(sink: Sink) -> None:
            assert set(saving.hold([name_of(ONE), name_of(TWO)])) == {name_of(ONE)}
            saving.add(name_of(TWO), len(TWO), [TWO])
            saving.settle()
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            _put(store, called("best"), "two", values, values)
        saving.end()

        assert held(store, path_of(store, called("best"))) == [ONE]
        assert there(store, [ONE, TWO]) == {ONE}

    def test_pieces_that_fail_leave_no_content(self, opener: Opener) -> None:
        store = opener()
        put(store, called("best"), "former")
        saving = contents_of(store).saving(path_of(store, called("best")), lease=None, stage="two")
        large = content(5, 9 << 20)

        def broken() -> Iterator[bytes]:
            yield from list(pieces(large))[:2]
            raise OSError("no more")

        def values(sink: Sink) -> None:
            saving.hold([name_of(large)])
            saving.add(name_of(large), len(large), broken())

        with pytest.raises(OSError, match="no more"):
            _put(store, called("best"), "two", values, values)
        saving.end()

        assert there(store, [large]) == set()
        assert held(store, put_holding(store, called("best"), "three", [large])) == [large]

    def test_what_a_save_has_found_stays_for_it_whoever_deletes_it(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path = put_holding(store, called("former"), "one", [ONE, TWO])
        saving = contents_of(store).saving(path_of(store, called("best")), lease=None, stage="two")

        def values(sink: Sink) -> None:
            assert set(saving.hold([name_of(ONE)])) == {name_of(ONE)}
            assert other.delete(path)
            contents_of(other).sweep()
            saving.settle()

        best = _put(store, called("best"), "two", values, writer(meta_holding("two", [name_of(ONE)])))
        saving.end()

        assert held(other, best) == [ONE]
        assert there(other, [ONE, TWO]) == {ONE}

    def test_what_is_being_written_is_not_swept(self, opener: Opener) -> None:
        store, other = opener(), opener()
        large = content(6, 9 << 20)
        saving = contents_of(store).saving(path_of(store, called("best")), lease=None, stage="one")

        def slowly() -> Iterator[bytes]:
            for piece in pieces(large):
                contents_of(other).sweep()
                assert there(other, [large]) == set()  # it is not whole
                yield piece

        def values(sink: Sink) -> None:
            saving.hold([name_of(large)])
            saving.add(name_of(large), len(large), slowly())
            contents_of(other).sweep()
            saving.settle()
            contents_of(other).sweep()

        best = _put(store, called("best"), "one", values, writer(meta_holding("one", [name_of(large)])))
        saving.end()

        assert held(other, best) == [large]

    def test_what_is_damaged_is_not_held_again_and_its_checkpoint_keeps_it(self, opener: Opener) -> None:
        store = opener()
        path = put_holding(store, called("best"), "one", [ONE, TWO])

        contents_of(opener()).distrust(path, name_of(ONE), "one")

        assert there(store, [ONE, TWO]) == {TWO}
        second = put_holding(store, called("second"), "two", [ONE, TWO])
        assert held(store, path) == held(store, second) == [ONE, TWO]
        assert store.delete(path)
        assert held(opener(), second) == [ONE, TWO]
        assert store.delete(second)
        assert there(store, [ONE, TWO]) == set()

    def test_contents_of_a_checkpoint_that_is_gone_or_another_one_are_not_found(self, opener: Opener) -> None:
        store = opener()
        path = put_holding(store, called("best"), "one", [ONE])
        put_holding(store, called("other"), "two", [TWO])

        for name, stage in ((name_of(TWO), "one"), (name_of(ONE), "two"), (name_of(THREE), "one")):
            with pytest.raises((CheckpointCorrupt, CheckpointNotFound)):
                all_of(contents_of(store).open(path, name, stage))
        store.delete(path)
        with pytest.raises((CheckpointCorrupt, CheckpointNotFound)):
            all_of(contents_of(store).open(path, name_of(ONE), "one"))

    def test_of_many_who_save_and_delete_the_same_everything_that_stays_is_whole(
        self, opener: Opener
    ) -> None:
        store, some = opener(), [content(number) for number in range(4)]

        def work(worker: int) -> None:
            mine = opener()
            for turn in range(8):
                chosen = [some[(worker + turn) % 4], some[turn % 4]]
                path = put_holding(mine, called(f"w{worker}"), f"w{worker}-{turn}", chosen)
                assert held(mine, path) == list(dict.fromkeys(chosen))
                if (worker + turn) % 3 == 0:
                    assert mine.delete(path)

        at_once([lambda worker=worker: work(worker) for worker in range(4)])  # type: ignore[misc]

        paths = [path_of(store, name) for name in listed(store)]
        kept = {data for path in paths for data in held(store, path)}
        contents_of(store).sweep()
        assert there(store, some) <= kept  # one that came as the last one went may be stored once more
        assert all(store.delete(path) for path in paths)
        assert there(opener(), some) == set()

    def test_a_reader_finds_the_contents_of_one_save_or_another(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path, done = put_holding(store, called("best"), "n0", [ONE, content(100)]), threading.Event()

        def write() -> None:
            try:
                for number in range(1, 12):
                    put_holding(store, called("best"), f"n{number}", [ONE, content(100 + number)])
            finally:
                done.set()

        def look() -> None:
            while not done.is_set():
                found = held(other, path)
                assert len(found) == 2
                assert found[0] == ONE

        at_once([write, look])

        assert held(other, path) == [ONE, content(111)]


class ContentProcessContract(Contract):
    """With processes that are killed."""

    @pytest.mark.parametrize("saves", [1, 4, 9])
    def test_killed_in_a_save_every_checkpoint_is_whole_and_nothing_else_stays(
        self, opener: Opener, saves: int
    ) -> None:
        said: list[int] = []
        with Companion(opener, "save_contents_until_killed") as other:
            while len(said) < saves:
                said.append(other.hear())
            other.kill()
            said += other.rest()
            other.wait()

        store = opener()
        lease = self.acquired(store)
        contents_of(store).sweep()

        turns = [json.loads(raw)["sequence"] for _, raw in store.list("s")]
        assert max(turns) in (said[-1], said[-1] + 1)
        every = [content(number) for number in range(max(turns) + 3)]
        expected: set[bytes] = set()
        for turn in turns:
            found = held(store, path_of(store, own_name(sequence=turn)))
            assert found == [content(0), content(turn), content(turn + 1)]
            expected |= set(found)
        assert there(store, every, own_name(sequence=99_998)) == expected
        put_holding(store, own_name(sequence=99_999), "last", [ONE, THREE], lease=lease, sequence=99_999)
        lease.release()

    def test_a_save_that_lost_its_session_commits_nothing_and_leaves_nothing(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            saving = contents_of(store).saving(path_of(store, own_name()), lease=lease, stage="one")

            def values(sink: Sink) -> None:
                saving.hold([name_of(ONE)])
                saving.add(name_of(ONE), len(ONE), [ONE])
                saving.settle()
                other.acquire("s", take_over=True).release()

            meta = writer(meta_holding("one", [name_of(ONE)]))
            with pytest.raises(GraflowError):
                _put(store, own_name(), "one", values, meta, lease)
            with suppress(GraflowError):
                saving.end()

        contents_of(other).sweep()
        assert listed(other) == []
        assert there(other, [ONE], own_name()) == set()


def _put(
    store: CheckpointStore,
    name: str,
    stage: str,
    values: PartWriter,
    meta: PartWriter,
    lease: Lease | None = None,
) -> str:
    path = path_of(store, name)
    store.put(path, [("pkl", values), ("meta.json", meta)], lease=lease, stage=stage)
    return path
