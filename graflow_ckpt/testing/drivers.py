"""The contract of drivers: the six calls that a keyed store asks of a place, as stores/driver.py says them.

    class TestMyDriver(DriverContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return partial(MyDriver, tmp_path / "things")

Promise: over a driver that keeps it, `KeyedStore` keeps all that stores promise. A driver that is not
`atomic` gets only the batches that a store makes there: one put with a guard, puts of fresh keys, or drops.
Not here: what the store does then (tests/conformance), outages, and the power.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, TypeVar

import cloudpickle
import pytest

from graflow_ckpt.stores.driver import Driver, Put, Row, Stored

THREADS = 6
T = TypeVar("T")
Opener = Callable[[], Driver]
ALIKE = ["s", "S", "s_", "s-", "s=", "ab", "a_b", "a-b", "axb", "@a=25b", "@" + "x" * 200, "@" + "x" * 201]


class DriverContract:
    """A class of tests gives `opener`."""

    paging: ClassVar[int] = 1010
    """How many keys and rows make more than one page of any listing."""

    shared: ClassVar[bool] = True
    """Whether other processes reach the place: then some are started, and killed."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Return what opens an empty place, a new handle each call. It is sent to other processes."""
        raise NotImplementedError("give the class a fixture `opener` that returns what opens an empty place")

    @pytest.fixture
    def driver(self, opener: Opener) -> Driver:
        return opener()

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
        began, before = time.monotonic(), driver.now()
        put(driver, "lease/s/1", b"")
        at = got(driver, "lease/s/1").at

        assert before - 2 <= at <= driver.now() + 2  # some clocks count whole seconds
        while driver.now() <= at + 1:
            assert time.monotonic() < began + 10
            time.sleep(0.05)
        assert driver.now() - before <= time.monotonic() - began + 2
        put(driver, "lease/s/1", b"", fresh=False)
        assert got(driver, "lease/s/1").at > at
        assert [entry.at for entry in driver.keys("lease/")] == [got(driver, "lease/s/1").at]

    # --- batches -----------------------------------------------------------------------

    @pytest.mark.parametrize("size", [3, 200_000])
    def test_a_fresh_key_is_put_once(self, driver: Driver, size: int) -> None:
        tag = put(driver, "journal/s/1/0", b"one")

        for data in (b"one", b"x" * size):
            assert driver.batch([Put("journal/s/1/0", data)]) is None

        assert (bytes(got(driver, "journal/s/1/0").data), got(driver, "journal/s/1/0").tag) == (b"one", tag)

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

    def test_what_one_handle_writes_another_one_finds(self, opener: Opener) -> None:
        driver, other = opener(), opener()
        for number, soft in enumerate((True, False, True)):
            data, key = b"%d" % number, f"data/s/{number}/0"
            assert other.get("lease/s/1", key) == driver.get("lease/s/1", key)
            puts = [Put("lease/s/1", data, fresh=False)], [Put(key, data)]

            assert [driver.batch(each, soft=soft) is not None for each in puts] == [True, True]

            assert [bytes(each.data) for each in other.get("lease/s/1", key) if each] == [data, data]
            assert bytes(other.read("lease/s/1", 0, 1) or b"") == data
            assert keys(other, "data/s/")[-1] == key
        driver.batch([], ["lease/s/1", "data/s/1/0"])
        assert other.get("lease/s/1", "data/s/1/0") == [None, None]
        assert keys(other, "data/s/") == ["data/s/0/0", "data/s/2/0"]

    def test_a_soft_batch_is_refused_like_any_other(self, driver: Driver) -> None:
        former = put(driver, "lease/s/1", b"one")
        put(driver, "lease/s/1", b"two", fresh=False)

        late = Put("lease/s/1", b"late", fresh=False)
        assert driver.batch([late], guards={"lease/s/1": former}, soft=True) is None
        assert driver.batch([late], guards={"lease/s/1": None}, soft=True) is None
        assert driver.batch([late._replace(fresh=True)], soft=True) is None

        assert bytes(got(driver, "lease/s/1").data) == b"two"

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
            "data/s-/1/0",
            "data/s1/1/0",
            "data/S/1/0",
            "data/r/1/0",
            "data/t/1/0",
            "datas/s/0",
            "head/s",
        ]
        puts = [*(Put(key, b"1234") for key in wanted), *(Put(key, b"") for key in others)]
        fill(driver, random.Random(2).sample(puts, len(puts)))

        entries = list(driver.keys("data/s/"))

        assert [entry.key for entry in entries] == wanted
        assert {entry.size for entry in entries} == {4}
        assert all(abs(entry.at - driver.now()) < 60 for entry in entries)
        assert keys(driver, "head/") == ["head/s"]
        assert keys(driver, "data/none/") == []

    def test_a_listing_goes_on_while_keys_come_and_go(self, driver: Driver) -> None:
        there = [f"data/s/{number:05}/0" for number in range(self.paging)]
        fill(driver, [Put(key, b"") for key in there])

        listing = driver.keys("data/s/")
        first = next(listing).key
        driver.batch([], there[-2:-1])
        put(driver, "data/s/new/0", b"")
        found = [first, *(entry.key for entry in listing)]

        assert len(found) == len(set(found))
        assert set(there) - set(there[-2:-1]) <= set(found)

    def test_keys_that_are_alike_are_apart(self, driver: Driver) -> None:
        names = [f"data/{scope}/1-0f/m.{scope}" for scope in ALIKE]
        tags = [put(driver, key, b"%d" % at) for at, key in enumerate(names)]

        assert [(int(each.data), each.tag) for each in driver.get(*names) if each] == [*enumerate(tags)]
        for scope, key in zip(ALIKE, names, strict=True):
            assert keys(driver, f"data/{scope}/") == [key]
        assert keys(driver, "data/") == sorted(names)
        driver.batch([], names[::2])
        assert keys(driver, "data/") == sorted(names[1::2])

    def test_rows_are_found_by_all_facts_the_last_first_in_pages(self, driver: Driver) -> None:
        if driver.find(Row(), 1) is None:
            assert [driver.find(Row("s"), 9), driver.find(Row(), 9, below=9)] == [None, None]
            return  # they are not kept
        facts = [(f"s{n % 3}", f"w{n % 2}", "paused" if n % 5 == 0 else "") for n in range(self.paging)]
        for number, its in enumerate(facts):  # one by one: of those that go together there is no order
            driver.batch([Put(f"data/s/{number:05}/m", b"%d" % number, row=Row(*its))])
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
        while hits := driver.find(Row(workflow="w1"), self.paging // 8, below):
            assert [hit.number for hit in hits] == sorted({hit.number for hit in hits}, reverse=True)
            assert below is None or hits[0].number < below
            pages += [int(bytes(hit.data)) for hit in hits]
            below = hits[-1].number
        assert pages == [n for n in everything if n % 2]

    def test_a_row_that_is_put_again_is_found_once(self, driver: Driver) -> None:
        again = 1 if driver.atomic else 2  # where a batch is no whole, what may be there is put again
        for _ in range(again):
            put(driver, "data/s/1/m", b"one", fresh=driver.atomic, row=Row("s", "w", "paused"))

        hits = driver.find(Row("s", status="paused"), 9)
        assert hits is None or [bytes(hit.data) for hit in hits] == [b"one"]

    @pytest.mark.parametrize("size", [10, 70_000, 3 << 20])
    def test_of_what_is_found_only_the_listed_bytes_are_given(self, driver: Driver, size: int) -> None:
        whole = b"meta" + b"x" * size
        driver.batch([Put("data/s/1/m", whole, row=Row("s"), listed=4)])
        driver.batch([Put("data/s/2/m", b"all", row=Row("s"))])

        hits = driver.find(Row("s"), 9)
        assert hits is None or [bytes(hit.data) for hit in hits] == [b"all", b"meta"]
        assert bytes(got(driver, "data/s/1/m").data) == whole
        assert [entry.size for entry in driver.keys("data/s/1/")] == [len(whole)]
        assert bytes(driver.read("data/s/1/m", 3, 4) or b"") == b"axxx"

    @pytest.mark.parametrize("fact", ["a\\nb", "a b", "%s", "*", "'; drop", "x" * 2000, ":", ":s:s"])
    def test_a_fact_is_any_printable_text(self, driver: Driver, fact: str) -> None:
        put(driver, "data/s/1/m", b"1", row=Row("s", fact, fact))
        put(driver, "data/s/2/m", b"2", row=Row("s", f"{fact}x", ""))

        hits = driver.find(Row("s", fact, fact), 9)

        assert hits is None or [hit.key for hit in hits] == ["data/s/1/m"]

    # --- many at once ------------------------------------------------------------------

    def test_of_many_with_one_guard_exactly_one_wins(self, opener: Opener) -> None:
        tag: str | None = None
        driver, *handles = [opener() for _ in range(1 + THREADS)]
        for turn in range(5):
            puts = [Put("head/s", b"%d.%d" % (turn, who), fresh=False) for who in range(THREADS)]
            done = at_once(
                [
                    partial(handle.batch, [put], guards={"head/s": tag})
                    for handle, put in zip(handles, puts, strict=True)
                ]
            )
            won = [who for who, each in enumerate(done) if each is not None]

            assert len(won) == 1
            head = got(driver, "head/s")
            tag = head.tag
            assert bytes(head.data) == b"%d.%d" % (turn, won[0])
            assert (each := done[won[0]]) is not None
            assert each.tag == tag

    def test_of_many_who_put_one_fresh_key_exactly_one_wins(self, opener: Opener) -> None:
        driver, *handles = [opener() for _ in range(1 + THREADS)]
        for turn in range(5):
            key = f"journal/s/1/{turn}"
            done = at_once(
                [partial(handle.batch, [Put(key, b"%d" % who)]) for who, handle in enumerate(handles)]
            )

            won = [who for who, each in enumerate(done) if each is not None]
            assert len(won) == 1
            assert bytes(got(driver, key).data) == b"%d" % won[0]

    def test_no_change_is_lost_between_many(self, driver: Driver) -> None:
        put(driver, "head/s", b"0")

        at_once([partial(add_five, lambda: driver, THREADS)] * THREADS)

        assert bytes(got(driver, "head/s").data) == b"%d" % (5 * THREADS)

    def test_no_change_is_lost_between_processes(self, opener: Opener) -> None:
        driver = opener()
        put(driver, "head/s", b"0")

        if self.shared:
            with process(add_five, opener, 2) as one, process(add_five, opener, 2) as two:
                assert [one.wait(60), two.wait(60)] == [0, 0]
        else:
            at_once([partial(add_five, opener, 2)] * 2)

        assert bytes(got(driver, "head/s").data) == b"10"


class AtomicDriverContract(DriverContract):
    """The tests of a driver that is `atomic`: batches of any shape."""

    kills: ClassVar[int] = 40
    """How many processes are killed within a batch."""

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

    def test_no_record_follows_a_change_of_the_head_that_it_was_guarded_by(self, driver: Driver) -> None:
        """Check that a writer that has changed the head has seen all records put under the former one."""
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

    def test_what_is_got_together_was_there_at_one_moment(self, opener: Opener) -> None:
        driver, other, over = opener(), opener(), threading.Event()
        names = [f"lease/s/{number}" for number in range(4)]
        driver.batch([Put(key, b"") for key in names])

        def write() -> None:
            while not over.is_set():
                driver.batch([Put(key, b"", fresh=False) for key in names])

        def look() -> None:
            try:
                for _ in range(60):
                    assert len({found and found.tag for found in other.get(*names)}) == 1
            finally:
                over.set()

        at_once([write, look])

    def test_of_a_batch_of_a_process_that_is_killed_there_is_all_or_nothing(self, opener: Opener) -> None:
        driver = opener()
        driver.batch([Put("head/s", b"0"), *(Put(key, b"") for key in parts_of(0))])
        if self.shared:
            with process(kill_within_batches, opener, self.kills) as other:
                assert other.wait() == 0, "the process before has left a part of a batch"

        check_whole(driver)


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


def got(driver: Driver, key: str) -> Stored:
    (found,) = driver.get(key)
    assert found is not None
    return found


def fill(driver: Driver, puts: Sequence[Put]) -> None:
    for at in range(0, len(puts), 100):
        assert driver.batch(puts[at : at + 100], soft=True) is not None


def add_five(opener: Opener, many: int) -> None:
    """Add one, five times, to a head that others change, too, when all of them are there."""
    driver, end = opener(), time.monotonic() + 20
    put(driver, f"lease/s/{os.urandom(8).hex()}", b"")
    while len(keys(driver, "lease/s/")) < many:
        assert time.monotonic() < end
        time.sleep(0.001)
    for _ in range(5):
        while True:
            head = got(driver, "head/s")
            more = Put("head/s", b"%d" % (int(head.data) + 1), fresh=False)
            if driver.batch([more], guards={"head/s": head.tag}) is not None:
                break


def kill_within_batches(opener: Opener, kills: int) -> None:
    """Fork processes that replace batch after batch, and kill each within one."""
    for _ in range(kills):
        seen, told = os.pipe()
        child = os.fork()  # to start one takes a hundred times as long as the batches that are worth a kill
        if not child:
            signal.alarm(60)  # a driver may wait for ever for what a killed one had locked
            try:
                replace_without_end(opener(), told)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(told)
        times = [(os.read(seen, 1), time.monotonic())[1] for _ in range(3)]  # the second batch begins now
        time.sleep(random.random() * (times[1] - times[0]))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL  # else it had ended
        os.close(seen)


def replace_without_end(driver: Driver, told: int) -> None:
    """Replace batch after batch, a head and four keys that go with it; tell when one begins, and ends."""
    number, tag = check_whole(driver)
    while True:
        drops, number = parts_of(number), number + 1
        head = Put("head/s", b"%d" % number, fresh=False)
        parts = [Put(key, b"x" * 3000) for key in parts_of(number)]
        os.write(told, b"(")
        done = driver.batch([head, *parts], drops, guards={"head/s": tag})
        os.write(told, b")")
        assert done is not None
        tag = done.tag


def check_whole(driver: Driver) -> tuple[int, str]:
    """Return the number and the tag of a head with which its keys are there, and no others."""
    claimed = None  # the last batch of a killed process may be carried out now, or is refused then
    while claimed is None:
        head = got(driver, "head/s")
        claimed = driver.batch([Put("head/s", head.data, fresh=False)], guards={"head/s": head.tag})
    names = parts_of(int(head.data))
    assert keys(driver, "data/") == names
    assert {found and found.tag for found in driver.get(*names)} == {head.tag}
    return int(head.data), claimed.tag


def parts_of(number: int) -> list[str]:
    return [f"data/{number}/{part}" for part in range(4)]


@contextmanager
def process(job: Callable[..., None], *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job in another process, which is killed at the end."""
    program = "import sys, cloudpickle; cloudpickle.load(sys.stdin.buffer)()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as other:
        try:
            assert other.stdin is not None
            other.stdin.write(cloudpickle.dumps(partial(job, *arguments)))
            other.stdin.close()
            yield other
        finally:
            other.kill()


def keys(driver: Driver, prefix: str) -> list[str]:
    return [entry.key for entry in driver.keys(prefix)]


def state(driver: Driver) -> list[tuple[str, bytes, str]]:
    """Return all that is there."""
    names = [key for kind in ("data/", "head/", "journal/", "lease/") for key in keys(driver, kind)]
    return [(key, bytes(got(driver, key).data), got(driver, key).tag) for key in names]
