"""The head of a session that has many checkpoints: most of them are in pages."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from types import FrameType
from typing import Any

import pytest

from graflow_ckpt.stores import head as heads
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.head import Head, HeadRecord, Held, Page, decode, decode_page
from tests.trios import owning, put_own


def steps(call: Callable[[], object]) -> int:
    """Count the instructions of the interpreter: the same ones each time, whatever else the machine does."""
    count, former = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    gc.disable()  # what other tests have left may have finalizers
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(former)
        gc.enable()
    return count


def test_a_save_costs_the_same_however_many_checkpoints_a_session_has() -> None:
    store = MemoryStore("memory://many")
    with owning(store) as lease:
        few = [steps(partial(put_own, store, lease, number)) for number in range(1, 140)]
        for number in range(140, 1001):
            put_own(store, lease, number)
        many = [steps(partial(put_own, store, lease, number)) for number in range(1001, 1140)]
    store.forget()

    assert median(many) < 1.15 * median(few)
    assert sum(many) < 1.25 * sum(few)
    assert max(many) < 4 * max(few)  # the one that makes a page of small ones


def test_a_head_with_pages_has_what_was_put_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MOST", 9)
    monkeypatch.setattr(heads, "PAGES", 3)
    chance, pages = random.Random(5), dict[str, Page]()
    head, model = Head(epoch=1), dict[str, HeadRecord]()
    for number in range(1, 800):
        held = {chance.randrange(30) for _ in range(chance.randrange(4))}
        went: list[HeadRecord] = []
        if chance.random() < 0.6:
            base = f"c{chance.randrange(60)}"
            went = [model.pop(base)] if base in model else []
            contents = tuple([content(one) for one in sorted(held)])
            model[base] = HeadRecord(base, "1-0a", number, "x", meta=("1-0a", 7), contents=contents)
            head = head.holding(model[base])
        else:
            gone = chance.sample([f"c{one}" for one in range(60)], chance.randrange(9))
            went = [model.pop(base) for base in gone if base in model]
            head = head.without(gone)
        let = [one for record in went for one in record.contents]
        head, page, empty = head.turned(1)
        if page is not None:
            assert decode_page("s", page[0], page[1]) == head.pages[page[0]]
            pages[page[0]] = decode_page("s", page[0], page[1])
        for mark in empty:
            del pages[mark]

        everything = {one for record in model.values() for one in record.contents}
        assert [*head.all()] == [*model.values()]
        assert decode("s", head.encode(), lambda marks: {mark: pages[mark] for mark in marks}) == head
        assert {base: head.get(base) for base in map("c{}".format, range(60))} == {
            base: model.get(base) for base in map("c{}".format, range(60))
        }
        assert head.loose(let) == {*let} - everything
        assert head.find([content(one).name for one in range(30)]) == {one.name: one for one in everything}
    assert len(head.pages) > 2


def content(number: int) -> Held:
    return Held(f"{number:064x}", "1-0c", number)


def test_of_two_contents_of_a_name_only_the_sound_one_is_found() -> None:
    sound, damaged = content(1), content(1)._replace(mark="1-0b")
    first = HeadRecord("first", "1-0a", 1, "x", contents=(sound,))
    second = first._replace(base="second", contents=(damaged,))
    for head in (Head().holding(first).holding(second), Head().holding(second).holding(first)):
        assert head._replace(bad=frozenset([damaged])).find([sound.name]) == {sound.name: sound}
        assert head.loose([sound, damaged]) == set()
        assert head.without(["first"]).loose([sound, damaged]) == {sound}
