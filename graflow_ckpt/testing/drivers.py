"""The contract of drivers: the six calls that a keyed store asks of a place, as stores/driver.py says them.

    class TestMyDriver(DriverContract):
        @pytest.fixture
        def driver(self, tmp_path):
            return MyDriver(tmp_path / "things")

A driver that is not `atomic` gets only the batches that a store makes there: one put with a guard, puts of
fresh keys, or drops. Not here: what a store makes of it (StoreContract), and outages.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar, TypeVar

import pytest

from graflow_ckpt.stores.driver import Driver, Found, Put, Row

THREADS = 6
T = TypeVar("T")


class DriverContract:
    """A class of tests gives `driver`: of an empty place."""

    paging: ClassVar[int] = 25
    """How many keys and rows make more than one page; the more, the longer it takes."""

    @pytest.fixture
    def driver(self) -> Driver:
        raise NotImplementedError("give the class a fixture `driver` of an empty place")

    # --- get, read, now ----------------------------------------------------------------

    def test_what_was_put_is_got_with_its_tag_in_the_order_of_the_question(self, driver: Driver) -> None:
        one, two = put(driver, "data/s/1/m", b"one"), put(driver, "data/s/2/m", b"two")

        found = driver.get("data/s/2/m", "data/s/none", "data/s/1/m")

        assert [each and (bytes(each.data), each.tag) for each in found] == [
            (b"two", two),
            None,
            (b"one", one),
        ]
        assert list(driver.get()) == []

    @pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), b"\xff" * 3])
    def test_bytes_are_kept_as_they_are(self, driver: Driver, data: bytes) -> None:
        put(driver, "data/s/1/m", data)

        assert bytes(got(driver, "data/s/1/m").data) == data

    def test_what_is_large_is_kept_whole_and_replaced_whole(self, driver: Driver) -> None:
        for size in (3000, 5 << 20, 10, 70_000):
            data = os.urandom(size)
            tag = got(driver, "head/s").tag if driver.get("head/s")[0] else None
            assert driver.batch([Put("head/s", data, fresh=False)], guards={"head/s": tag})

            assert bytes(got(driver, "head/s").data) == data

    def test_any_buffer_is_taken_and_may_be_used_again(self, driver: Driver) -> None:
        for number, kind in enumerate((bytearray, memoryview)):
            buffer = bytearray(b"before")
            key = f"data/s/{number}/0"
            assert driver.batch([Put(key, kind(buffer))])
            buffer[:] = b"behind"

            assert bytes(got(driver, key).data) == b"before"

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_a_piece_is_read_and_nothing_that_is_shorter(self, driver: Driver, size: int) -> None:
        data = os.urandom(size)
        put(driver, "data/s/1/0", data)

        for start, length in ((0, 1), (0, size), (3, 4), (size - 1, 1)):
            piece = driver.read("data/s/1/0", start, length)
            assert piece is not None
            assert bytes(piece) == data[start : start + length]
        assert driver.read("data/s/1/0", 1, size) is None
        assert driver.read("data/s/1/0", size, 1) is None
        assert driver.read("data/s/none", 0, 1) is None

    def test_the_clock_goes_on_and_what_is_put_is_dated_by_it(self, driver: Driver) -> None:
        before = driver.now()
        put(driver, "lease/s/1", b"")
        at = got(driver, "lease/s/1").at

        assert before - 2 <= at <= driver.now() + 2  # some clocks count whole seconds
        deadline = time.monotonic() + 5
        while driver.now() <= before:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    # --- batches -----------------------------------------------------------------------

    def test_a_fresh_key_is_put_once(self, driver: Driver) -> None:
        tag = put(driver, "journal/s/1/0", b"one")

        assert driver.batch([Put("journal/s/1/0", b"two")]) is None
        assert driver.batch([Put("journal/s/1/0", b"one")]) is None

        assert (got(driver, "journal/s/1/0").data, got(driver, "journal/s/1/0").tag) == (b"one", tag)

    @pytest.mark.parametrize("size", [1, 200_000])
    def test_a_large_fresh_key_that_is_refused_changes_nothing(self, driver: Driver, size: int) -> None:
        put(driver, "data/s/1/0", b"kept")

        assert driver.batch([Put("data/s/1/0", b"x" * size)]) is None

        assert bytes(got(driver, "data/s/1/0").data) == b"kept"

    def test_what_need_not_be_fresh_is_replaced(self, driver: Driver) -> None:
        first = put(driver, "lease/s/1", b"one", fresh=False)
        second = put(driver, "lease/s/1", b"two", fresh=False)

        assert first != second
        assert (bytes(got(driver, "lease/s/1").data), got(driver, "lease/s/1").tag) == (b"two", second)

    def test_a_guard_lets_only_the_state_through_that_it_names(self, driver: Driver) -> None:
        def change(data: bytes, tag: str | None) -> str | None:
            done = driver.batch([Put("head/s", data, fresh=False)], guards={"head/s": tag})
            return done and done.tag

        one = change(b"one", None)
        assert one is not None
        assert change(b"late", None) is None
        two = change(b"two", one)
        assert two is not None
        assert change(b"late", one) is None

        assert bytes(got(driver, "head/s").data) == b"two"
        driver.batch([], ["head/s"])
        assert change(b"late", two) is None
        assert driver.get("head/s") == [None]

    def test_a_tag_is_never_used_twice(self, driver: Driver) -> None:
        tags = []
        for number in range(20):
            tags.append(put(driver, "head/s", b"%d" % number, fresh=False))
            if number % 3 == 2:
                driver.batch([], ["head/s"])

        assert len(set(tags)) == 20

    def test_drops_take_away_and_what_is_not_there_is_no_trouble(self, driver: Driver) -> None:
        for number in range(3):
            put(driver, f"data/s/{number}/m", b"x", row=Row("s"))

        assert driver.batch([], ["data/s/0/m", "data/s/none", "data/s/2/m", "data/s/0/m"]) is not None
        assert driver.batch([], ["data/s/none"]) is not None

        assert keys(driver, "data/s/") == ["data/s/1/m"]
        assert driver.batch([Put("data/s/0/m", b"again", row=Row("s"))]) is not None
        hits = driver.find(Row("s"), 9)
        assert hits is None or [hit.key for hit in hits] == ["data/s/0/m", "data/s/1/m"]

    def test_an_empty_batch_is_carried_out(self, driver: Driver) -> None:
        assert driver.batch([]) is not None

    def test_a_soft_batch_is_seen_at_once(self, driver: Driver) -> None:
        assert driver.batch([Put("data/s/1/0", b"soft")], soft=True)

        assert bytes(got(driver, "data/s/1/0").data) == b"soft"

    def test_many_and_large_puts_go_together(self, driver: Driver) -> None:
        puts = [Put(f"data/s/1/{number:06}", os.urandom(150_000)) for number in range(12)]

        assert driver.batch(puts, soft=True)

        assert keys(driver, "data/s/1/") == [each.key for each in puts]
        assert [bytes(each.data) for each in driver.get(*keys(driver, "data/s/1/")) if each] == [
            bytes(each.data) for each in puts
        ]

    # --- keys and rows -----------------------------------------------------------------

    def test_keys_are_listed_in_order_and_only_those_that_begin_so(self, driver: Driver) -> None:
        wanted = [f"data/s/{number:05}/0" for number in range(self.paging)]
        others = [
            "data/s-1/1/0",
            "data/s1/1/0",
            "data/S/1/0",
            "datas/s/1",
            "head/s",
            "data/r/1/0",
            "data/t/1/0",
        ]
        for key in (*reversed(wanted), *others):
            put(driver, key, b"1234" if key in wanted else b"")

        entries = list(driver.keys("data/s/"))

        assert [entry.key for entry in entries] == wanted
        assert {entry.size for entry in entries} == {4}
        assert all(abs(entry.at - driver.now()) < 60 for entry in entries)
        assert keys(driver, "head/") == ["head/s"]
        assert keys(driver, "data/none/") == []

    def test_a_listing_goes_on_while_keys_come_and_go(self, driver: Driver) -> None:
        there = [f"data/s/{number:05}/0" for number in range(self.paging)]
        for key in there:
            put(driver, key, b"")

        listing = driver.keys("data/s/")
        first = next(listing).key
        driver.batch([], there[-2:-1])
        put(driver, "data/s/new/0", b"")
        found = [first, *(entry.key for entry in listing)]

        assert len(found) == len(set(found))
        assert set(there) - set(there[-2:-1]) <= set(found)

    @pytest.mark.parametrize("fact", ["a\\nb", "a b", "%s", "*", "'; drop", "x" * 2000, ":", ":s:s"])
    def test_a_fact_is_any_printable_text(self, driver: Driver, fact: str) -> None:
        put(driver, "data/s/1/m", b"1", row=Row("s", fact, fact))
        put(driver, "data/s/2/m", b"2", row=Row("s", f"{fact}x", ""))

        hits = driver.find(Row("s", fact, fact), 9)

        assert hits is None or [hit.key for hit in hits] == ["data/s/1/m"]

    # --- threads -----------------------------------------------------------------------

    def test_of_many_with_one_guard_exactly_one_wins(self, driver: Driver) -> None:
        tag: str | None = None
        for turn in range(5):
            puts = [Put("head/s", b"%d.%d" % (turn, who), fresh=False) for who in range(THREADS)]
            done = at_once([partial(driver.batch, [put], guards={"head/s": tag}) for put in puts])
            won = [who for who, each in enumerate(done) if each is not None]

            assert len(won) == 1
            head = got(driver, "head/s")
            tag = head.tag
            assert bytes(head.data) == b"%d.%d" % (turn, won[0])
            assert (each := done[won[0]]) is not None
            assert each.tag == tag

    def test_of_many_who_put_one_fresh_key_exactly_one_wins(self, driver: Driver) -> None:
        for turn in range(5):
            key = f"journal/s/1/{turn}"
            done = at_once([partial(driver.batch, [Put(key, b"%d" % who)]) for who in range(THREADS)])

            won = [who for who, each in enumerate(done) if each is not None]
            assert len(won) == 1
            assert bytes(got(driver, key).data) == b"%d" % won[0]

    def test_no_change_is_lost_between_many(self, driver: Driver) -> None:
        put(driver, "head/s", b"0")

        def count() -> None:
            for _ in range(5):
                while True:
                    head = got(driver, "head/s")
                    more = Put("head/s", b"%d" % (int(head.data) + 1), fresh=False)
                    if driver.batch([more], guards={"head/s": head.tag}) is not None:
                        break

        at_once([count] * THREADS)

        assert bytes(got(driver, "head/s").data) == b"%d" % (5 * THREADS)


class AtomicDriverContract(DriverContract):
    """Of one that is `atomic`, and keeps rows: batches of any shape, and what is found by facts."""

    @pytest.mark.parametrize("size", [1, 200_000])
    @pytest.mark.parametrize("why", ["guard", "guard gone", "taken", "need", "second guard"])
    def test_a_batch_that_is_refused_has_changed_nothing(self, driver: Driver, why: str, size: int) -> None:
        tag, other = put(driver, "head/s", b"head"), put(driver, "head/t", b"head")
        put(driver, "data/s/0/m", b"there", row=Row("s"))
        guards: dict[str, str | None] = {"head/s": tag, "head/t": other}
        needs, key = ["data/s/0/m", "head/t"], "data/s/1/m"
        match why:
            case "guard":
                guards["head/s"] = other
            case "guard gone":
                guards["head/s"] = None
            case "second guard":
                put(driver, "head/t", b"changed", fresh=False)
            case "taken":
                key = "data/s/0/m"
            case _:
                needs.append("data/s/none")
        before = state(driver)
        puts = [
            Put("head/s", b"new", fresh=False),
            Put("data/s/2/0", b"x" * size),
            Put(key, b"x", row=Row("s")),
        ]

        assert driver.batch(puts, ["data/s/0/m"], guards=guards, needs=needs) is None

        assert state(driver) == before
        hits = driver.find(Row(), 9)
        assert hits is None or [hit.key for hit in hits] == ["data/s/0/m"]

    def test_a_batch_that_holds_is_carried_out_as_a_whole_under_one_tag(self, driver: Driver) -> None:
        tag, other = put(driver, "head/s", b"head"), put(driver, "head/t", b"head")
        put(driver, "data/s/0/m", b"there", row=Row("s"))
        puts = [
            Put("head/s", b"new", fresh=False),
            Put("lease/s/1", b""),
            Put("data/s/1/m", b"x", row=Row("s")),
        ]

        done = driver.batch(
            puts,
            ["data/s/0/m"],
            guards={"head/s": tag, "head/t": other, "head/u": None},
            needs=["head/t", "head/t", "data/s/0/m"],
        )

        assert done is not None
        assert {each.tag for each in driver.get(*(each.key for each in puts)) if each} == {done.tag}
        assert (got(driver, "head/t").tag, keys(driver, "data/")) == (other, ["data/s/1/m"])
        hits = driver.find(Row("s"), 9)
        assert hits is None or [hit.key for hit in hits] == ["data/s/1/m"]

    def test_a_guard_on_what_is_only_looked_at_holds_for_a_record(self, driver: Driver) -> None:
        tag = put(driver, "head/s", b"mine")
        assert driver.batch([Put("journal/s/1/0", b"one")], guards={"head/s": tag})
        put(driver, "head/s", b"another's", fresh=False)

        assert driver.batch([Put("journal/s/1/1", b"late")], guards={"head/s": tag}) is None

        assert keys(driver, "journal/s/") == ["journal/s/1/0"]

    def test_rows_are_found_by_all_facts_the_last_first_in_pages(self, driver: Driver) -> None:
        for number in range(self.paging):
            row = Row(f"s{number % 3}", f"w{number % 2}", "paused" if number % 5 == 0 else "")
            put(driver, f"data/s/{number:05}/m", b"%d" % number, row=row)
        put(driver, "data/s/none/0", b"no row")

        def found(limit: int = 1 << 40, below: int | None = None, **facts: str) -> list[int]:
            return [int(bytes(hit.data)) for hit in driver.find(Row(**facts), limit, below) or ()]

        everything = list(range(self.paging))[::-1]
        assert found() == everything
        assert found(3) == everything[:3]
        assert found(session="s1") == [n for n in everything if n % 3 == 1]
        assert found(workflow="w0", status="paused") == [n for n in everything if n % 10 == 0]
        assert found(session="s2", workflow="w1", status="none") == found(session="s") == []
        pages, below = list[int](), None
        while hits := driver.find(Row(workflow="w1"), 2, below):
            assert [hit.number for hit in hits] == sorted({hit.number for hit in hits}, reverse=True)
            pages += [int(bytes(hit.data)) for hit in hits]
            below = hits[-1].number
        assert pages == [n for n in everything if n % 2]

    def test_no_record_follows_a_change_of_the_head_that_it_was_guarded_by(self, driver: Driver) -> None:
        """Whoever has changed the head has seen all records that were put under the former one."""
        tag, seen = put(driver, "head/s", b"mine"), list[list[str]]()

        def append() -> None:
            for number in range(200):
                if driver.batch([Put(f"journal/s/1/{number:05}", b"")], guards={"head/s": tag}) is None:
                    return

        def claim() -> None:
            while not keys(driver, "journal/s/"):
                time.sleep(0.001)
            assert driver.batch([Put("head/s", b"another's", fresh=False)], guards={"head/s": tag})
            seen.append(keys(driver, "journal/s/"))

        at_once([append, claim])

        assert seen == [keys(driver, "journal/s/")]


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run them in threads that start together; their results, or the first error of any."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(run, job) for job in jobs]]


def put(driver: Driver, key: str, data: bytes, *, fresh: bool = True, row: Row | None = None) -> str:
    """Put one thing, and return its tag."""
    assert driver.batch([Put(key, data, fresh, row)]) is not None
    return got(driver, key).tag


def got(driver: Driver, key: str) -> Found:
    (found,) = driver.get(key)
    assert found is not None
    return found


def keys(driver: Driver, prefix: str) -> list[str]:
    return [entry.key for entry in driver.keys(prefix)]


def state(driver: Driver) -> list[tuple[str, bytes, str]]:
    """All that is there."""
    names = [key for kind in ("data/", "head/", "journal/", "lease/") for key in keys(driver, kind)]
    return [(key, bytes(got(driver, key).data), got(driver, key).tag) for key in names]
