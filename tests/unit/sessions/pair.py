"""A pair: one SessionState and one session in Redis that are given the same transitions.

`Pair.check` compares everything that can be read: tables, counters, order, replies.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import RESULT, Cell, Claim, Live, Op, Version
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.ops import REF, arguments, strictly
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state, write_state
from tests.unit.core.histories import dump
from tests.unit.sessions.moves import NAMES, SCENES, TASKS, Chooser, in_one_queue, tags, transition, turn

SESSION = "s-1"
ENDS = {"completed", "stopped", "stalled", "failed", "cancelled"}
LEASE = 15_000


BUNDLED = [b"\x90", b"\x00", b"\x1f\x1e\x00|,\xff\r\n"]
"""Cells that stand for live values, which share."""


def all_as_one(live: Mapping[str, Any]) -> list[list[str]]:
    return [[*live]] if live else []


class Plain:
    """Cells that are bytes and stay as they are."""

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes:
        if place[:1] == "*":
            assert isinstance(cell, Live)
            return pickle.dumps(cell.value)
        return _apart(cell)

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell:
        return Live(pickle.loads(data)) if place[:1] == "*" else data

    def seal(self, pickle: bytes, place: str) -> bytes:
        return pickle

    def open(self, name: str, data: bytes, place: str) -> bytes:
        return data


class Recorded(RedisSession):
    """Keeps what it has sent, so that it can be sent again."""

    quick = math.inf  # few words wherever they do, however slow the machine is
    sent: tuple[Any, ...] = ()
    reply: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._call, self.sender._call = self.sender._call, self._recorded  # type: ignore[method-assign]

    def _recorded(self, script: Any, args: Any, seen: Any) -> Any:
        reply = self._call(script, args, seen)
        if script is self._step:
            self.sent, self.reply = (script, (keys_of(self.id) + "c",), args), reply
        return reply

    def send_again(self, nonce: str = "", follows: str | None = None) -> Any:
        """The same request once more, or one of another nonce, or one that follows another one."""
        script, keys, args = self.sent
        follows = args[4] if follows is None else follows
        assert self.sender._wire is not None
        return self.sender._wire.call(
            script, keys, [args[0], nonce or args[1], *args[2:4], follows, *args[5:]]
        )


class Pair:
    """The model, and senders of the session in Redis: two with tokens, one without."""

    def __init__(
        self, link: RedisLink, counts: Counter[str] | None = None, *, step: str = "", queue: str = "*"
    ) -> None:
        link.client.flushall()
        self.link = link
        self.counts = counts if counts is not None else Counter()
        self.step = step  # a script to use instead of the real one
        self.queue = queue  # that the senders claim from; the model knows no queues
        self.state = SessionState(SESSION, ("a",))
        self.now = 1_700_000_000.0
        self.bundling = True  # some values are in bundles: then no turn is short
        self.several: set[str] = set()  # tasks that have had two specs at once
        self.state.epoch = write_state(link, self.state, Plain(), {}, verb="create")
        self.holder: dict[int, RedisSession] = {}
        self.senders: list[Recorded] = [self.join(), self.join(), self.sender("")]

    # --- senders -----------------------------------------------------------------------

    def join(self) -> Recorded:
        """Somebody with a token of his own; without one if the session has ended."""
        key = keys_of(SESSION) + "c"
        reply = self.link.script(START)([key], ["", "me", LEASE, int(self.now * 1000), new_nonce()])
        return self.sender(*(reply[n].decode() for n in (1, 3))) if len(reply) > 1 else self.sender("")

    def sender(self, token: str, began: str = "") -> Recorded:
        one = Recorded(self.link, SESSION, Plain(), token, began, queue=self.queue)
        if self.step:
            one._step = self.link.script(self.step)
        return one

    def mine(self, sender: RedisSession) -> list[int]:
        return [key for key in self.state.claimed if self.holder.get(key) is sender]

    def transition(self, choose: Chooser, at: int) -> list[Op]:
        return transition(choose, self.state, self.mine(self.senders[at]), self.now, outside=at == 2)

    def close(self) -> None:
        for sender in self.senders:
            sender.close()

    # --- moves -------------------------------------------------------------------------

    def commit(
        self, at: int, ops: Sequence[Op], mode: str = "", *, ignored: Sequence[Op] = ()
    ) -> list[Claim]:
        """The same on both sides, but for what Redis is to ignore; what they answer is the same."""
        if self.senders[at].retired:
            self.senders[at].close()
            self.senders[at] = self.join()
        sender, state = self.senders[at], self.state
        before = dump(state)
        sent = self.in_bundles([self.based(op) for op in ops], sender.held)
        claims = apply(state, ops, self.now)
        sender.sender.stamp = repr(self.now)
        found = sender.commit([*ignored, *sent], mode)
        assert found == claims
        assert (sender.status, sender.steps) == (state.status, state.steps)
        assert sender.ready in (-1, len(state.ready))  # -1: it was not looked at
        for claim in claims:
            self.holder[claim.spec.key] = sender
        if state.status in ENDS and not state.claimed:
            for one in self.senders[:2]:
                one.retired = True  # the end takes all tokens with it
        self.counts.update(tags(before, ops, state, len(claims)))
        self._note_several()
        return claims

    def _note_several(self) -> None:
        count = Counter(spec.task_id for spec in self.state.specs.values())
        self.several -= {task for task in self.several if count[task] < 2 and task not in self.state.errors}
        self.several |= {task for task, n in count.items() if n > 1}

    def refuse(self, at: int, ops: Sequence[Op], error: type[Exception]) -> None:
        """Both refuse, and nothing has changed."""
        before = dump(self.state)
        with pytest.raises(error):
            apply(self.state, ops, self.now)
        sender = self.senders[at]
        if not sender.retired:
            sender.sender.stamp = repr(self.now)
            with pytest.raises(error):
                sender.commit([self.based(op) for op in ops])
            assert sender.broken is None
        assert dump(self.state) == before
        self.counts[error.__name__] += 1

    def refuse_around(self, choose: Chooser, at: int) -> None:
        """A claim that has ended or never was, and a base of another time are refused, whatever is beside."""
        state = self.state
        key = choose.one([*state.claimed, 0, state.next_key])
        ended: Op = ("end", key, state.next_claim, "completed", b"\xc0")
        self.refuse(at, self._around(choose, ended), Fenced)
        if state.values:
            name = choose.one(sorted(state.values))
            stale: Op = ("put", name, b"\x05", state.values[name][1] + choose.one([-1, 1]))
            self.refuse(at, self._around(choose, stale), WriteConflict)

    def _around(self, choose: Chooser, bad: Op) -> list[Op]:
        ops = transition(choose, self.state, [], self.now)
        at = choose.one(range(len(ops) + 1))
        return [*ops[:at], bad, *ops[at:]]

    def steal(self, choose: Chooser) -> None:
        """The model knows one sender only: that a claim is another's nothing but Redis refuses."""
        sender = self.senders[0]
        claims = [(k, n) for k, n in self.state.claimed.items() if self.holder.get(k) is not sender]
        if claims and not sender.retired:
            with pytest.raises(Fenced):
                sender.commit([("end", *choose.one(claims), "completed", b"\xc0"), ("claim", 1)])
            self.counts["another's claim ended"] += 1

    def reap(self, at: int, kind: str) -> None:
        """The sender has died; somebody outside gives back what it held, and it comes back."""
        dead = self.senders[at]
        if dead.retired or dead.token.startswith("!"):
            return
        ops: list[Op] = [(kind, key, "E: died" if kind == "quarantine" else 1) for key in self.mine(dead)]
        others: list[Op] = [("release", key, 1) for key in self.state.claimed if key not in self.mine(dead)]
        self.commit(2, [*ops, ("claim", 0)], mode=f"!T{dead.token}", ignored=others)
        with pytest.raises(Fenced):
            dead.commit([("claim", 1)])
        dead.close()
        self.senders[at] = self.join()
        self.counts["reaped"] += 1

    def give_back_anothers(self, at: int) -> None:
        """What a sender had claimed is another's by now: that he gives it back does nothing."""
        others = [key for key in self.state.claimed if key not in self.mine(self.senders[at])]
        if others and not self.senders[at].token.startswith("!"):
            self.commit(at, [], ignored=[("release", others[0], 1), ("quarantine", others[-1], "E: no")])
            self.counts["another's claim given back"] += 1

    def in_bundles(self, ops: Sequence[Op], held: Container[int]) -> list[Op]:
        """As Redis is told them: some values are of one pickle. The model has them one by one."""
        specs = {key: spec.task_id + RESULT for key, spec in self.state.specs.items()}
        ends = [op for op in ops if op[0] == "end" and op[3] == "completed"]
        names = Counter([*(op[1] for op in ops if op[0] == "put"), *(specs[op[1]] for op in ends)])
        sent: list[Op] = []
        for op in ops if self.bundling else ():
            if op[0] == "put" and names[op[1]] == 1 and op[2] in BUNDLED:
                op = (*op[:2], Live(op[2], BUNDLED.index(op[2]) % 2 + 1), op[3])
            elif op in ends and op[1] in held and names[specs[op[1]]] == 1 and op[4] in BUNDLED:
                op = (*op[:4], Live(op[4], 1))
            sent.append(op)
        return sent or [*ops]

    def based(self, op: Op) -> Op:
        """As Redis is told it: a version has the nonce of a request beside the number of its transition."""
        if op[0] != "put" or op[3] <= 0:
            return op
        known: Any = self.link.client.hget(f"{keys_of(SESSION)}v", f"#{op[1]}")
        if known is None or int(known.partition(b"_")[0]) != op[3]:
            return (*op[:3], b"%d_1_other_1" % op[3])
        return (*op[:3], known)

    def of_another_history(self, at: int) -> None:
        """Nothing follows what the session does not have; no base is one of another write of that number."""
        sender, before = self.senders[at], dump(self.state)
        if not sender.sent or sender.retired or len(sender.reply) < 4:
            return
        _, number, name = sender.sent[2][1].split("_")
        mine, others = f"1_{int(number) + 1}_{name}", f"1_{number}_{name[::-1]}x"
        assert sender.send_again(mine, others) == [b"lost" if sender.token.startswith("!") else b"fenced"]
        for value, (_, version) in list(self.state.values.items())[:1]:
            with pytest.raises(WriteConflict):
                sender.commit([("put", value, b"\x05", b"%d_%b" % (version, others.encode()))])
            args = strictly(arguments([("claim", 0)], Plain(), self.queue), [(value, b"%d_x_1" % version)])
            script, keys, words = sender.sent
            assert sender.sender._wire is not None
            found = sender.sender._wire.call(
                script, keys, [words[0], f"1_{number}9_{name}", *words[2:4], sender.sender.follows, *args]
            )
            assert found == [b"stale", value.encode()]
        assert dump(self.state) == before
        self.check()
        self.counts["of another history"] += 1

    def rob(self, at: int) -> None:
        """What a sender was given is taken from him and is another's before his request is sent again."""
        sender = self.senders[at]
        taken = [key for key in self.mine(sender) if sender.sent and len(sender.reply) >= 4]
        if taken and not sender.retired:
            self.commit(2, [("release", taken[-1], 1), ("claim", 1)])
            self.send_again(at)
            self.counts["robbed"] += 1

    def rewrite(self) -> None:
        """What was read is written in the place of what there is: the same session, without its tokens."""
        state = read_state(self.link, SESSION, Plain())
        self.link.client.delete(*[f"{keys_of(SESSION)}{name}" for name in ("tok", "own")])  # nobody is alive
        self.state.epoch = write_state(self.link, state, Plain(), {}, verb="rewind", share=all_as_one)
        self.holder.clear()
        self.close()
        self.senders = [self.join(), self.join(), self.sender("")]
        self.counts["rewritten"] += 1

    def send_again(self, at: int) -> None:
        """A reply was lost: the same request is answered in the same way, and a late one not at all."""
        sender = self.senders[at]
        if not sender.sent or len(sender.reply) < 4:  # a refused one was not counted: that is not an answer
            return
        status, steps, ready, tail, *claims = sender.send_again()
        assert (status.decode(), steps, ready) == (self.state.status, self.state.steps, len(self.state.ready))
        assert tail == sender.reply[3]
        held = {b"%d" % self.state.claimed[key] for key in self.mine(sender)}
        assert claims == [record for record in sender.reply[4:] if record.split(b"\x1f")[0] in held]
        self.counts["sent again"] += 1
        tries, number, name = sender.sent[2][1].split("_")
        again = sender.send_again(f"{int(tries) + 1}_{number}_{name}")  # another try of it is the same
        assert again[3] == tail + f"\x1fnonce\x1f{sender.sent[2][1]}".encode()
        late = sender.send_again(f"1_{int(number) - 1}_{name}")  # and what came before it is too late
        assert late == [b"lost" if sender.token.startswith("!") else b"fenced"]
        self.counts["too late"] += 1

    # --- comparing ---------------------------------------------------------------------

    def check(self) -> None:
        """Everything is the same on both sides."""
        assert facts(read_state(self.link, SESSION, Plain())) == facts(self.state)
        fields: Any = self.link.client.hgetall(f"{keys_of(SESSION)}v")
        referred = {cell[2:] for name, cell in fields.items() if name[:1] == b"=" and cell[:2] == REF}
        assert {name[1:] for name in fields if name[:1] == b"*"} == referred
        assert {name[1:] for name in fields if name[:1] == b"~"} == referred
        self.counts["bundles"] += len(referred)

    def check_values(self, names: Sequence[str]) -> None:
        """What a body reads, and whether a task has given nothing this time."""
        reader = self.senders[2].read_all([*names, *(task + RESULT for task in TASKS)])
        for name, (found, _) in zip(names, reader, strict=False):
            value = self.state.values.get(name)
            items = tuple(self.state.appended.get(name, ()))
            assert (found and (_apart(found[0]), _number(found[1]), found[2])) == (value and (*value, items))
        for task, (_, nothing) in zip(TASKS, reader[len(names) :], strict=True):
            if task not in self.several:  # two specs, one retried and one failed: the last word counts there
                assert nothing is self.state.gave_nothing(task), task


def _apart(cell: Cell) -> bytes:
    """A cell as the model has it, which knows no bundles."""
    if isinstance(cell, Live):
        assert isinstance(cell.value, bytes)
        return cell.value
    return cell


def _number(version: Version) -> int:
    assert isinstance(version, bytes)
    return int(version.partition(b"_")[0])


_KINDS = ["commit"] * 16 + [
    "history",
    "again",
    "again",
    "refused",
    "theft",
    "reap",
    "another",
    "rob",
    "rewrite",
    "check",
    "check",
]


def play(pair: Pair, choose: Chooser, moves: int) -> None:
    """So many moves of all kinds; what is compared after each of them is cheap, the rest now and then."""
    for _ in range(moves):
        at = choose.one([0, 0, 1, 2])
        pair.now += choose.one([0.0, 0.0, 0.25, 1.0, 5.0])
        match choose.one(_KINDS):
            case "again":
                pair.send_again(at)
            case "refused":
                pair.refuse_around(choose, at)
            case "theft":
                pair.steal(choose)
            case "reap":
                pair.reap(choose.one([0, 1]), choose.one(["release", "doubt", "quarantine"]))
            case "history":
                pair.of_another_history(at)
            case "another":
                pair.give_back_anothers(at)
            case "rob":
                pair.rob(at)
            case "rewrite":
                pair.rewrite()
            case "check":
                pair.check()
                pair.check_values(NAMES)
            case _:
                pair.commit(at, pair.transition(choose, at))
    pair.check()
    pair.check_values(NAMES)


def play_turns(pair: Pair, choose: Chooser, moves: int) -> None:
    """A session of one queue in which hardly anything unusual happens."""
    pair.bundling = False
    pair.commit(0, [("enqueue", task, None, 0, 0, "default", "direct") for task in TASKS])
    pair.commit(2, choose.one([[], [], [("cap", 2)], [("reopen", 1, 4)]]))
    for _ in range(moves):
        at = choose.one([0, 1])
        mine = pair.mine(pair.senders[at])
        match choose.one(["turn"] * 30 + ["again"] * 8 + ["pause", "theft", "other"]):
            case "again":
                pair.send_again(at)
            case "pause":
                status = "running" if pair.state.status == "paused" else "paused"
                pair.commit(2, [("status", status, "")])
            case "theft":
                for key in set(pair.state.claimed) - set(mine):
                    with pytest.raises(Fenced):
                        pair.senders[at].commit(turn(choose, pair.state, [key]))
            case "other":
                pair.commit(at, in_one_queue(pair.transition(choose, at)))
            case _:
                pair.commit(at, turn(choose, pair.state, mine) if mine else [("claim", 1)])
        if choose.one([True, False, False]):
            pair.check()
    pair.check()


def play_scenes(link: RedisLink, step: str = "", counts: Counter[str] | None = None) -> None:
    for scene in SCENES:
        with closing(Pair(link, counts, step=step, queue="default")) as pair:
            for ops in scene:
                pair.commit(0, ops)
                pair.check()
                pair.check_values(NAMES)


def facts(state: SessionState) -> dict[str, Any]:
    """All of a state; heaps in order."""
    found = dump(state)
    found["values"] = {name: (_apart(cell), version) for name, (cell, version) in state.values.items()}
    found["ready"], found["delayed"] = sorted(found["ready"]), sorted(found["delayed"])
    found["dead"] = list(state.dead.items())
    return found
