"""The contract of listings: complete, fresh, newest first, and true to the bytes of each meta."""

from __future__ import annotations

import json

import pytest

from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import (
    listed,
    meta_of,
    named,
    own_name,
    owning,
    path_of,
    put,
    put_meta,
    put_own,
    read,
)

MANY = 230  # more than one page of any store that reads in pages
DAMAGED = [b"", b"\xff\xfe\x00damaged", b"[]", b"null", b'"text"', b"{", b"[" * 100_000, b'{"session_id": 7}']


class ListingContract(Contract):
    """Whoever lists sees what is there, and nothing else."""

    def test_an_empty_store_has_nothing(self, opener: Opener) -> None:
        store = opener()

        assert listed(store) == listed(store, "s") == []
        assert listed(store, None, path_of(store, "*")) == []
        assert store.owner("s") is None
        assert list(store.segments("s")) == []
        store.drop_segments("s", 10)

    def test_the_newest_of_a_session_comes_first(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            for sequence in range(1, 13):  # in the order of letters 10 comes before 9
                put_own(store, lease, sequence)

        expected = [named(own_name(sequence=sequence)) for sequence in range(12, 0, -1)]
        for handle in (store, opener()):
            assert listed(handle, "s") == expected
            assert listed(handle) == expected

    def test_a_session_finds_its_own_and_what_names_it(self, opener: Opener) -> None:
        store = opener()
        put(store, own_name("s"), "own")
        put(store, own_name("t"), "other", session="t")
        put(store, "best", "best", session="s")
        put(store, "worst", "worst", session="t")
        put(store, "nobodys", "nobodys", session="")

        assert sorted(listed(store, "s")) == ["best", named(own_name("s"))]
        assert sorted(listed(store, "t")) == [named(own_name("t")), "worst"]
        assert listed(store, "u") == []
        assert len(listed(store)) == 5

    def test_a_name_changes_sessions_with_its_meta(self, opener: Opener) -> None:
        store = opener()
        put(store, "best", "one", session="s")

        put(store, "best", "two", session="t")

        assert listed(store, "s") == []
        assert listed(store, "t") == ["best"]

    def test_a_pattern_selects_names(self, opener: Opener) -> None:
        store = opener()
        for name in ("best1", "best2", "Best3", "a[1]", "rest"):
            put(store, name, "one", session="s" if name != "best2" else "t")

        def found(pattern: str, session: str | None = None) -> list[str]:
            return sorted(listed(store, session, path_of(store, pattern)))

        assert found("best*") == ["best1", "best2"]
        assert found("*est*") == ["Best3", "best1", "best2", "rest"]
        assert found("best[13]") == ["best1"]
        assert found("best*", "t") == ["best2"]
        assert found("none*") == []
        assert len(found("*")) == 5

    def test_what_is_listed_is_found_under_its_path(self, opener: Opener) -> None:
        store = opener()
        for name in ("best", "a b%", own_name()):
            put(store, name, "one")

        found = list(store.list())

        assert len(found) == 3
        for path, raw in found:
            assert store.takes(path) is not None
            assert read(store, path).meta == raw

    def test_another_handle_lists_at_once_what_was_put_replaced_or_deleted(self, opener: Opener) -> None:
        store, other = opener(), opener()
        assert listed(other) == []
        paths = [put(store, f"n{number}", "one") for number in range(3)]
        assert sorted(listed(other)) == ["n0", "n1", "n2"]

        put(store, "n1", "two")
        assert {json.loads(raw)["stage"] for _, raw in other.list()} == {"one", "two"}

        for path in paths:
            store.delete(path)
            assert named(path) not in listed(other)

    @pytest.mark.parametrize("name", ["best", own_name()], ids=["named", "own"])
    def test_damaged_metas_are_kept_and_listed_as_they_are(self, opener: Opener, name: str) -> None:
        store = opener()
        for meta in DAMAGED:
            path = put_meta(store, name, meta)

            assert store.meta(path) == meta
            assert [raw for _, raw in store.list()] == [meta]
            assert listed(store, "s") == ([named(name)] if name == own_name() else [])
        assert store.delete(path) is True

    def test_metas_are_kept_to_the_byte(self, opener: Opener) -> None:
        store = opener()
        odd = b'{"session_id":"s",  "stage": "alone", "n": 1.0, "n": 1e3, "\\u00e9": "\xc3\xa9"}\n\n'

        path = put_meta(store, "best", odd)

        assert store.meta(path) == odd
        assert [raw for _, raw in store.list("s")] == [odd]

    def test_many_are_listed_once_each(self, opener: Opener) -> None:
        store = opener()
        for number in range(MANY):
            session = f"s{number % 3}"
            meta = meta_of("alone", session=session, sequence=number + 1)
            put_meta(store, own_name(session, number + 1), meta)

        everything = listed(store)

        assert len(everything) == len(set(everything)) == MANY
        of_one = [named(own_name("s1", number + 1)) for number in range(MANY) if number % 3 == 1]
        assert listed(store, "s1") == of_one[::-1]

    def test_a_listing_goes_on_while_checkpoints_come_and_go(self, opener: Opener) -> None:
        store, other = opener(), opener()
        for number in range(20):
            put_meta(store, f"n{number}", meta_of("alone"))
        found = store.list()

        first = named(next(found)[0])
        gone = [f"n{number}" for number in range(0, 20, 2) if f"n{number}" != first]
        for name in gone:
            other.delete(path_of(other, name))
        put(other, "new", "new")
        names = [first, *(named(path) for path, _ in found)]

        assert len(names) == len(set(names))
        assert {f"n{number}" for number in range(20)} - set(gone) <= set(names)
        assert set(names) <= {"new", *(f"n{number}" for number in range(20))}
        assert not set(gone) & set(listed(store))

    def test_a_listing_that_is_not_read_to_its_end_holds_nothing_up(self, opener: Opener) -> None:
        store, other = opener(), opener()
        for number in range(3):
            put(store, f"n{number}", "one")
        found = store.list()
        next(found)

        for handle in (other, store):
            put(handle, "n1", "two")
            assert handle.delete(path_of(handle, "n1")) is True

        del found
        assert sorted(listed(store)) == ["n0", "n2"]
