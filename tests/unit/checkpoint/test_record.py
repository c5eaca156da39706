"""What a journal records of values that share: each bundle as a whole, or a checkpoint takes its place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.record import Bundles, Unrecordable, record
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.state import SessionState


class Node:
    def __init__(self, *edges: Any) -> None:
        self.edges = list(edges)


class Kept:
    """A session, and what a replay of its records would have."""

    def __init__(self, **values: Any) -> None:
        self.state, self.replayed = SessionState("s"), SessionState("s")
        self.bundles = Bundles(self.state)
        self.on_loan: set[str] = set()
        if values:
            self.put(**values)

    def put(self, **values: Any) -> list[Op]:
        return self.commit([("put", name, Live(value), -1) for name, value in values.items()])

    def commit(self, ops: Sequence[Op], recorded: bool = True) -> list[Op]:
        apply(self.state, ops, 0.0)
        if not recorded:
            self.bundles.forget(ops)
            return []
        kept = record(self.bundles, ops, self.on_loan.__contains__)
        read = journal.unpack(journal.pack(self.state.sequence, 0.0, kept))
        apply(self.replayed, read.ops, 0.0)
        return kept

    def again(self, name: str) -> Any:
        cell = self.replayed.values[name][0]
        assert isinstance(cell, Live)
        return cell.value


def names(ops: Sequence[Op]) -> list[str]:
    return [op[1] for op in ops]


def test_a_value_that_is_as_the_journal_has_it_is_not_recorded_again() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())

    assert kept.put(a=node) == kept.put(c=kept.state.values["c"][0].value) == []


def test_a_change_through_one_name_is_recorded_under_all() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())

    node.edges.append(1)

    assert sorted(names(kept.put(a=node))) == ["a", "b"]
    assert kept.again("b").edges[0] is kept.again("a")


def test_a_name_under_which_another_object_is_set_leaves_and_the_others_are_recorded_as_they_are() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node(node))

    node.edges.append(1)

    assert sorted(names(kept.put(a=Node()))) == ["a", "b", "c"]
    assert kept.again("b").edges[0] is kept.again("c").edges[0]
    assert kept.again("b").edges[0].edges == [1]
    assert kept.again("a").edges == []


def test_what_changed_while_a_checkpoint_was_due_is_recorded_when_it_changes_back() -> None:
    node = Node(1)
    kept = Kept(a=node)
    node.edges[0] = 2
    kept.commit([("put", "a", Live(node), -1)], recorded=False)  # a checkpoint has it

    node.edges[0] = 1

    assert names(kept.put(a=node)) == ["a"]


def test_a_live_value_that_comes_back_after_a_plain_one_is_recorded() -> None:
    kept = Kept(a=Node(), log=[Node()])
    kept.commit([("put", "a", b"\x05", -1), ("append", "log", b"\x03")])

    assert sorted(names(kept.put(a=Node(), log=[Node()]))) == ["a", "log"]

    assert type(kept.again("a")) is Node
    assert [type(one) for one in kept.again("log")] == [Node]
    assert kept.replayed.appended == {}


def test_a_value_too_large_for_a_record_is_known_when_it_is_in_a_checkpoint() -> None:
    node = Node(b"." * (2 << 20))
    kept = Kept(c=Node())
    with pytest.raises(Unrecordable, match="too many for a journal record"):
        kept.put(a=node)

    assert kept.put(a=node) == []
    node.edges.append(1)
    with pytest.raises(Unrecordable, match="too many for a journal record"):
        kept.put(a=node)


def test_a_member_that_another_attempt_holds_is_no_matter_for_a_record() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())
    kept.on_loan = {"b"}

    node.edges.append(1)
    with pytest.raises(Unrecordable, match="on loan"):
        kept.put(a=node)

    assert names(kept.put(c=Node(2))) == ["c"]
    kept.on_loan = set()
    assert sorted(names(kept.put(a=node))) == ["a", "b"]


def test_an_object_that_another_attempt_holds_under_a_name_that_is_set_is_no_matter_for_a_record() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node))
    kept.on_loan = {"a"}

    with pytest.raises(Unrecordable, match="on loan"):
        kept.put(a=Node())


def test_items_are_recorded_alone_until_one_shares() -> None:
    node = Node()
    kept = Kept(a=node)
    alone = [kept.commit([("append", "log", Live(Node(number)))]) for number in range(3)]

    whole = kept.commit([("append", "log", Live(node))])

    assert [names(ops) for ops in alone] == [["log"]] * 3
    assert sorted(names(whole)) == ["a", "log", "log", "log", "log", "log"]
    assert kept.replayed.appended["log"][3].value is kept.again("a")  # type: ignore[union-attr]


def test_one_bundle_of_all_names_is_looked_at_when_an_item_or_a_value_comes() -> None:
    node, more = Node(), Node()
    kept = Kept(a=node, b=Node(node))
    node.edges.append(more)
    kept.put(a=node)

    appended = kept.commit([("put", "a", Live(node), -1), ("append", "log", Live(more))])
    kept.put(c=more)

    assert sorted(names(appended)) == ["a", "b", "log", "log"]
    assert kept.again("c") is kept.again("a").edges[0]
    assert kept.again("c") is kept.replayed.appended["log"][0].value  # type: ignore[union-attr]


def test_a_value_that_was_alone_and_is_unchanged_is_looked_at_when_its_object_is_set_again() -> None:
    node = Node()
    kept = Kept(a=node, b=Node())
    kept.commit([("put", "b", b"\xc0", -1)])
    kept.put(a=node)

    kept.put(a=node, c=node)

    assert kept.again("c") is kept.again("a")


def test_items_that_are_one_object_stay_one() -> None:
    node = Node()
    kept = Kept()

    kept.commit([("append", "log", Live(node))])
    kept.commit([("append", "log", Live(node)), ("append", "log", b"\x01")])

    first, second, plain = kept.replayed.appended["log"]
    assert first.value is second.value  # type: ignore[union-attr]
    assert plain == b"\x01"


def test_a_plain_item_beside_live_values_is_recorded_and_goes_when_the_name_is_put() -> None:
    node = Node()
    kept = Kept(a=node, log=[node])

    kept.commit([("append", "log", b"\x01")])
    assert kept.replayed.appended["log"] == [b"\x01"]
    kept.put(log=kept.state.values["log"][0].value)

    assert kept.replayed.appended == {}
    assert kept.again("log")[0] is kept.again("a")


def test_an_old_array_does_not_live_on() -> None:
    array = np.arange(8.0)
    gone = weakref.ref(array)
    holder = Node(array)
    kept = Kept(a=holder, b=Node(array), c=Node())

    holder.edges[0] = 1
    del array
    kept.put(a=holder, b=Node())
    gc.collect()

    assert gone() is None


def test_values_of_before_are_looked_at_when_a_second_one_is_recorded() -> None:
    node = Node()
    kept = Kept()
    kept.commit([("put", "a", Live(node), -1), ("put", "b", Live(Node(node)), -1)], recorded=False)
    kept.bundles = Bundles(kept.state)  # as after a resume

    node.edges.append(1)

    assert sorted(names(kept.put(c=Node(node)))) == ["a", "b", "c"]
    assert kept.again("b").edges[0] is kept.again("c").edges[0] is kept.again("a")


def test_one_value_that_is_alone_is_pickled_once_and_nothing_is_compared() -> None:
    kept = Kept(a=Node())

    kept.put(a=Node(1))

    assert kept.bundles._at == {}
