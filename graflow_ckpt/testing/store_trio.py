"""The contract of a trio: three parts that appear, change and go as one."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore, PartWriter, Sink
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import (
    all_of,
    listed,
    meta_of,
    own_name,
    parts_of,
    path_of,
    put,
    put_meta,
    read,
    values_of,
    writer,
)

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

        with pytest.raises(CheckpointError):  # whoever sealed it has looked at what is not there any more
            put_meta(store, "best", meta_of("two"), "two")

        assert read(opener(), path).values == values_of("one")

    def test_nothing_is_seen_of_a_trio_before_its_last_part_is_written(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path = path_of(store, "best")
        seen: list[object] = []

        def look(sink: Sink) -> None:
            with pytest.raises(CheckpointNotFound):
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

        with pytest.raises(CheckpointCorrupt):
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

    def test_parts_of_a_deleted_trio_do_not_come_back(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")
        store.delete(path)

        put_meta(store, "best", meta_of("one"), "one")

        for part in ("pkl", "state.json"):
            with pytest.raises(CheckpointCorrupt):
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
        except CheckpointCorrupt:
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
            with pytest.raises(CheckpointError):
                store.put(path, parts_of("one"), lease=None, stage="one")
        assert listed(store) == []

    def test_errors_name_the_path_and_say_what_to_do(self, opener: Opener) -> None:
        store = opener()

        with pytest.raises(CheckpointNotFound) as missing:
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
    with pytest.raises(CheckpointNotFound):
        store.meta(path)
    for part in ("pkl", "state.json"):
        with pytest.raises(CheckpointNotFound):
            store.open(path, part, stage)
    return name.removesuffix(".pkl") not in listed(store)
