"""The scripts and the model: one SessionState and one session in Redis take the same transitions."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import Op
from graflow_ckpt.links.redis import RedisLink
from tests.unit.sessions.moves import EVERY, NAMES, Drawn, Seeded, transition
from tests.unit.sessions.pair import Pair, play, play_scenes, play_turns

AT = st.sampled_from([0, 0, 1, 2])  # of the senders
LATER = st.sampled_from([0.0, 0.0, 0.25, 1.0, 5.0])


class Machine(RuleBasedStateMachine):
    """Whatever one of them answers or refuses, the other does."""

    def __init__(self, link: RedisLink, counts: Counter[str]) -> None:
        super().__init__()
        self.pair = Pair(link, counts)

    @rule(data=st.data(), moves=st.lists(st.tuples(AT, LATER), min_size=1, max_size=8))
    def commit(self, data: st.DataObject, moves: list[tuple[int, float]]) -> None:
        pair = self.pair
        for at, later in moves:
            pair.now += later
            pair.commit(at, pair.transition(Drawn(data), at))
            pair.check()

    @rule(data=st.data(), at=AT)
    def refused_for_a_claim(self, data: st.DataObject, at: int) -> None:
        """It has ended, never was, or is another one of the same spec."""
        pair = self.pair
        key = data.draw(st.sampled_from([*pair.state.claimed, 0, pair.state.next_key]))
        bad: Op = ("end", key, pair.state.next_claim, "completed", b"\xc0")
        pair.refuse(at, self._around(data, bad), Fenced)
        pair.check()

    @precondition(lambda self: self.pair.state.values)
    @rule(data=st.data(), at=AT, off=st.sampled_from([-1, 1]))
    def refused_for_a_base(self, data: st.DataObject, at: int, off: int) -> None:
        pair = self.pair
        name = data.draw(st.sampled_from(sorted(pair.state.values)))
        bad: Op = ("put", name, b"\x05", pair.state.values[name][1] + off)
        pair.refuse(at, self._around(data, bad), WriteConflict)
        pair.check()

    def _around(self, data: st.DataObject, bad: Op) -> list[Op]:
        ops = transition(Drawn(data), self.pair.state, [], self.pair.now)
        at = data.draw(st.integers(0, len(ops)))
        return [*ops[:at], bad, *ops[at:]]

    @rule(data=st.data())
    def refused_for_somebody_elses_claim(self, data: st.DataObject) -> None:
        """The model knows one sender only: here nothing but Redis refuses."""
        pair = self.pair
        claims = [(k, n) for k, n in pair.state.claimed.items() if pair.holder.get(k) is not pair.senders[0]]
        if claims and not pair.senders[0].retired:
            key, number = data.draw(st.sampled_from(claims))
            with pytest.raises(Fenced):
                pair.senders[0].commit([("end", key, number, "completed", b"\xc0"), ("claim", 1)])
            pair.counts["somebody else's claim"] += 1
            pair.check()

    @rule(at=AT)
    def sent_again(self, at: int) -> None:
        self.pair.send_again(at)
        self.pair.check()

    @rule(at=st.sampled_from([0, 1]), kind=st.sampled_from(["release", "doubt", "quarantine"]))
    def reaped(self, at: int, kind: str) -> None:
        self.pair.reap(at, kind)
        self.pair.check()

    @rule(at=AT)
    def robbed(self, at: int) -> None:
        self.pair.rob(at)
        self.pair.check()

    @rule(at=AT)
    def another_s_claim_is_given_back(self, at: int) -> None:
        self.pair.give_back_anothers(at)
        self.pair.check()

    @rule(at=AT)
    def another_history_is_refused(self, at: int) -> None:
        self.pair.of_another_history(at)

    @rule()
    def rewritten(self) -> None:
        self.pair.rewrite()
        self.pair.check()

    @rule()
    def read(self) -> None:
        self.pair.check_values(NAMES)

    def teardown(self) -> None:
        self.pair.close()


def test_the_scripts_do_what_the_model_does(link: RedisLink, histories: range) -> None:
    class Here(Machine):
        def __init__(self) -> None:
            super().__init__(link, Counter())

    some = settings(max_examples=len(histories), stateful_step_count=30, report_multiple_bugs=False)

    run_state_machine_as_test(Here, settings=some)


def test_everything_has_happened_and_the_scripts_did_what_the_model_does(
    link: RedisLink, histories: range
) -> None:
    counts: Counter[str] = Counter()

    for seed in histories:
        with closing(Pair(link, counts)) as pair:
            play(pair, Seeded(seed), 40)
    play_scenes(link, counts=counts)

    assert [name for name in EVERY if not counts[name]] == []


def test_the_everyday_transition_does_what_the_model_does(link: RedisLink, histories: range) -> None:
    for seed in histories:
        with closing(Pair(link, queue="default")) as pair:
            play_turns(pair, Seeded(seed), 30)
