"""The tables of a session: written and read at once or not at all; ops and records come back the same."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import (
    GraphError,
    KeyTaken,
    NoSession,
    ServerGone,
    SessionBusy,
    SessionError,
    SessionExists,
    TooLarge,
)
from graflow_ckpt.core.facts import Claim, Op, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.links.wire import Script
from graflow_ckpt.sessions.redis import ops, tables
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.ops import arguments, claim_of, spec_of, turn
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import frozen, read_paged, read_state, spec_bytes, write_state
from tests.proxy import Proxy
from tests.unit.sessions.moves import TASKS, Drawn, transition
from tests.unit.sessions.pair import SESSION, Plain, facts

PREFIX = keys_of(SESSION)


def a_state(*ops: Op) -> SessionState:
    state = SessionState(SESSION, ("a", "b"), 9)
    for queue in ("default", "gpu"):
        for how in ("direct", "pass"):
            apply(state, [("enqueue", f"task {queue} {how}", b"\x1f\x1e\x00", 5, 2, queue, how)], 0.0)
    apply(state, [("put", "x", b"", -1), ("append", "y", b"\x01"), ("task", "made", b"pickle"), *ops], 0.0)
    return state


def write(link: RedisLink, state: SessionState, verb: str = "create", **options: Any) -> int:
    return write_state(link, state, Plain(), {"ttl": "9"}, verb=verb, **options)


def read(link: RedisLink, **options: bool) -> SessionState:
    return read_state(link, SESSION, Plain(), **options)


def names(link: RedisLink) -> set[str]:
    found: Any = link.client.keys("graflow:*")
    return {key.decode().removeprefix(PREFIX) for key in found}


# --- what is written is read -----------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), moves=st.lists(st.sampled_from([0.0, 1.0, 5.0]), max_size=15))
def test_any_state_comes_back_as_it_was(
    server_link: RedisLink, data: st.DataObject, moves: list[float]
) -> None:
    server_link.client.flushall()
    state, now = SessionState(SESSION, ("a",)), 1000.0
    for later in moves:
        now += later
        apply(state, transition(Drawn(data), state, list(state.claimed), now, outside=True), now)

    state.epoch = write(server_link, state)

    found = read(server_link)
    assert facts(found) == facts(state)
    reader = RedisSession(server_link, SESSION, Plain()).reader()
    assert all(reader.gave_nothing(task) is state.gave_nothing(task) for task in TASKS)
    server_link.client.expire(f"{PREFIX}c", 100)
    state.epoch = write(server_link, found, "rewind")
    assert facts(read(server_link)) == facts(state)


@pytest.mark.parametrize(("how", "nothing"), [("retry", False), ("failed", True)])
def test_whether_a_task_gave_nothing_is_kept(link: RedisLink, how: str, nothing: bool) -> None:
    state = SessionState(SESSION)
    last = ("end", 1, 2, how, *([9.0, "E: no"] if how == "retry" else ["E: no"]))
    first = ("end", 1, 1, "retry", 0.0, "E: no")
    for op in (("enqueue", "a", None, 0, 2, "default", "direct"), ("claim", 1), first, ("claim", 1), last):
        apply(state, [op], 1.0)

    write(link, state)

    assert state.gave_nothing("a") is nothing
    assert RedisSession(link, SESSION, Plain()).reader().gave_nothing("a") is nothing


def test_large_tables_are_written_in_pieces(link: RedisLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PAGE", 7)
    monkeypatch.setattr(tables, "_BYTES", 100)
    state = a_state()
    for n in range(50):
        spec = (f"t{n}", b"\xc0" * (1 + n % 40), n % 3, 0, "default", "direct")
        ops: list[Op] = [
            ("enqueue", *spec),
            ("put", f"v{n}", b"x" * (n * 7 % 60), -1),
            ("append", "y", b"%d" % n),
        ]
        apply(state, ops, 0.0)

    state.epoch = write(link, state)

    assert facts(read(link)) == facts(state)


def test_what_is_known_of_the_tasks_is_read_without_values(link: RedisLink) -> None:
    write(link, a_state())

    found = read(link, values=False)

    assert (found.values, found.appended) == ({}, {})
    assert len(found.specs) == 4
    assert found.tasks == {"made": b"pickle"}


def test_what_was_read_can_be_worked_on(link: RedisLink) -> None:
    state = a_state()
    state.cap = 1
    write(link, state, flags="f")
    session = RedisSession(link, SESSION, Plain())

    (claim,) = session.commit([("claim", 9)])

    assert (claim.spec.task_id, claim.spec.task_data) == ("task default direct", b"\x1f\x1e\x00")
    found = session.read("y")
    assert found is not None
    assert (found[0], found[2]) == (b"\x90", (b"\x01",))
    assert found[1] != 5  # it is told from what stood there under that number in another session


# --- create and rewind -----------------------------------------------------------------


def test_a_session_is_created_once(link: RedisLink) -> None:
    assert write(link, a_state()) == 1

    with pytest.raises(SessionExists, match=SESSION):
        write(link, SessionState(SESSION))

    assert len(read(link).specs) == 4


def test_the_epoch_only_grows(link: RedisLink) -> None:
    state = a_state()
    state.epoch = 7

    assert write(link, state) == 8
    state.epoch = 2
    assert write(link, state, "rewind") == 9
    state.epoch = 20
    assert write(link, state, "rewind") == 21
    assert read(link).epoch == 21


def test_a_rewind_takes_away_what_was_there(link: RedisLink) -> None:
    write(link, a_state(), flags="f")
    session = RedisSession(link, SESSION, Plain())
    spec = ("later", "b", None, 0, 0, "q-3", "direct", 1e12)
    session.commit(
        [spec, ("append", "z", b"\x01"), ("expect", "join", 1, 2, 0), ("skipped", "c"), ("claim", 2)]
    )
    session.commit([("rng", b"\x01"), ("cap", 2), ("quarantine", 1, "E: no")])

    state = SessionState(SESSION)
    state.epoch = write(link, state, "rewind")

    assert facts(read(link)) == facts(state)
    assert {name for name in names(link) if not name.startswith("x:")} == {"c", "h"}


def test_what_was_staged_stays(link: RedisLink) -> None:
    write(link, a_state(("claim", 1)))

    found = names(link)
    assert {"c", "h", "n", "v", "t", "a:y", "q:default", "q:gpu"} <= found
    assert {link.client.ttl(PREFIX + name) for name in found} == {-1}


@pytest.mark.parametrize("key", [f"{PREFIX}tok", "graflow:sessions", "graflow:active"])
def test_a_key_that_something_else_uses_is_named_by_a_rewind(link: RedisLink, key: str) -> None:
    write(link, a_state())
    before, lists = read(link), ("graflow:sessions", "graflow:active")
    link.client.set(key, "a note")

    with pytest.raises(KeyTaken, match=f"{key} is a string, not a zset"):
        write(link, a_state(("put", "x", b"other", -1)), "rewind", listed=lists)

    assert facts(read(link)) == facts(before)


def test_a_session_that_somebody_works_on_is_not_rewound(link: RedisLink) -> None:
    write(link, a_state())
    link.script(START)([f"{PREFIX}c"], ["", "host 7", 60_000, "", new_nonce()])

    with pytest.raises(SessionBusy, match="host 7") as caught:
        write(link, SessionState(SESSION), "rewind")

    assert caught.value.ids["owner"] == "host 7"
    assert len(read(link).specs) == 4


def test_who_worked_on_a_session_before_a_rewind_has_lost_it(link: RedisLink) -> None:
    write(link, a_state())
    _, token, _, began = link.script(START)([f"{PREFIX}c"], ["", "dead", 1, 1, new_nonce()])
    zombie = RedisSession(link, SESSION, Plain(), token.decode(), began.decode())
    (claim,) = zombie.commit([("claim", 1)])
    write(link, a_state(), "rewind")

    with pytest.raises(SessionError):
        zombie.commit([("end", claim.spec.key, claim.number, "completed", b"\x01")])


def test_tokens_of_two_sessions_of_one_name_differ(link: RedisLink) -> None:
    seen = set()
    for _ in range(2):
        write(link, a_state())
        seen.add(link.script(START)([f"{PREFIX}c"], ["", "me", 1000, "", new_nonce()])[1])
        assert link.client.delete(*link.client.keys("graflow:*"))

    assert len(seen) == 2


def test_claims_of_a_state_are_nobodys_until_they_are_given_back(link: RedisLink) -> None:
    state = a_state(("claim", 1))
    write(link, state)
    session = RedisSession(link, SESSION, Plain())
    (key,) = state.claimed

    with pytest.raises(SessionError):
        session.commit([("end", key, state.claimed[key], "completed", b"\x01")])
    session.commit([("release", key, 1)])

    found = read(link)
    assert found.claimed == {}
    assert found.specs[key].crashes == 1


# --- what goes wrong -------------------------------------------------------------------


class Dies(Exception):
    """The process of the writer, at that moment."""


@pytest.mark.parametrize("calls", range(1, 6))
def test_a_writer_that_dies_leaves_the_old_session_and_what_expires(
    link: RedisLink, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_state()
    old.epoch = write(link, old)
    run, left = Script.__call__, [calls]

    def dying(self: Script, *args: Any) -> Any:
        if not left[0]:
            raise Dies
        left[0] -= 1
        return run(self, *args)

    monkeypatch.setattr(Script, "__call__", dying)
    with pytest.raises(Dies):
        write(link, a_state(("put", "new", b"\x01", -1), ("append", "new", b"\x01")), "rewind")
    monkeypatch.undo()

    assert facts(read(link)) == facts(old)
    staged = {key: link.client.ttl(key) for key in link.client.keys(f"{PREFIX}~*")}
    assert len(staged) == calls
    assert all(0 < seconds <= 3600 for seconds in staged.values())


def test_what_was_staged_and_has_expired_is_not_taken_for_empty(
    link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_state()
    old.epoch = write(link, old)
    stage = tables._stage

    def late(*args: Any) -> list[str]:
        staged = stage(*args)
        link.client.delete(*link.client.keys(f"{PREFIX}~*:v"))
        return staged

    monkeypatch.setattr(tables, "_stage", late)

    with pytest.raises(SessionError, match="took longer"):
        write(link, a_state(), "rewind")

    assert facts(read(link)) == facts(old)


def test_two_writers_at_once_do_not_mix(link: RedisLink, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tables._stage
    mine, theirs = a_state(("put", "whose", b"mine", -1)), a_state(("put", "whose", b"theirs", -1))

    def beside(*args: Any) -> list[str]:
        monkeypatch.setattr(tables, "_stage", stage)
        staged = stage(*args)
        theirs.epoch = write(link, theirs)
        return staged

    monkeypatch.setattr(tables, "_stage", beside)

    with pytest.raises(SessionExists):
        write(link, mine)

    assert facts(read(link)) == facts(theirs)


def test_what_is_not_there_is_said_so(link: RedisLink) -> None:
    with pytest.raises(NoSession, match=SESSION):
        read(link)
    with pytest.raises(NoSession, match=SESSION):
        read_paged(link, SESSION, Plain())
    with pytest.raises(NoSession, match=SESSION), frozen(link, SESSION):
        pass
    assert link.client.keys(f"{PREFIX}*") == []


def test_a_session_that_somebody_reads_page_by_page_is_not_rewound(link: RedisLink) -> None:
    write(link, a_state())

    with frozen(link, SESSION), pytest.raises(SessionBusy):
        write(link, SessionState(SESSION), "rewind")

    assert len(read(link).specs) == 4
    assert write(link, SessionState(SESSION), "rewind") == 2


def test_the_ledger_of_a_session_that_goes_on_is_kept_as_long_as_the_session(link: RedisLink) -> None:
    write(link, a_state())
    link.client.rpush(f"{PREFIX}ledger", b"what happened")
    for name in names(link):
        link.client.expire(PREFIX + name, 100)

    write(link, a_state(), "rewind")

    assert {name: link.client.ttl(PREFIX + name) for name in names(link)} == dict.fromkeys(names(link), -1)
    assert "ledger" in names(link)


def test_a_session_is_not_frozen_by_who_did_not_hear_that_it_is(proxy: Proxy) -> None:
    with closing(open_link(proxy.url)) as link:
        write(link, a_state())
        proxy.drop_next_reply(b"EVALSHA")

        with pytest.raises(ServerGone), frozen(link, SESSION):
            pass

        assert proxy.dropped()
        with frozen(link, SESSION):
            pass


def test_a_freeze_leaves_the_lifetime_of_a_session_that_has_ended(link: RedisLink) -> None:
    write(link, a_state())
    link.client.expire(f"{PREFIX}c", 100)

    with frozen(link, SESSION):
        assert 0 < link.client.ttl(f"{PREFIX}c") <= 100

    assert 0 < link.client.ttl(f"{PREFIX}c") <= 100


# --- pages ------------------------------------------------------------------------------


def written(link: RedisLink, specs: int = 10, values: int = 5) -> SessionState:
    state = SessionState(SESSION, ("a",))
    ops: list[Any] = [
        ("enqueue", f"t{n}", b"\x01", n % 3, 2, ("default", "gpu")[n % 2], "direct") for n in range(specs)
    ]
    ops += [("put", f"v{n}", b"\x02", -1) for n in range(values)]
    ops += [("append", "list", b"%c" % (n % 100)) for n in range(values)]
    apply(state, ops, 0.0)
    write_state(link, state, Plain(), {}, verb="create")
    return state


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data(), moves=st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=5, max_size=25))
def test_what_is_read_by_pages_is_what_is_read_at_once(
    server_link: RedisLink, data: st.DataObject, moves: list[float]
) -> None:
    server_link.client.flushall()
    state, now = SessionState(SESSION, ("a",)), 1000.0
    for later in moves:
        now += later
        apply(state, transition(Drawn(data), state, list(state.claimed), now), now)
    write_state(server_link, state, Plain(), {}, verb="create")

    by_pages = read_paged(server_link, SESSION, Plain(), page=2)

    assert facts(by_pages) == facts(read_state(server_link, SESSION, Plain()))


def test_large_tables_come_whole(server_link: RedisLink) -> None:
    server_link.client.flushall()
    written(server_link, specs=50_000, values=3000)

    found = read_paged(server_link, SESSION, Plain())

    assert (len(found.specs), len(found.ready), len(found.values)) == (50_000, 50_000, 3001)
    assert len(found.appended["list"]) == 3000
    assert facts(found) == facts(read_state(server_link, SESSION, Plain()))


def test_commits_wait_until_the_last_page_was_read(
    server_link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_link.client.flushall()
    written(server_link)
    sender = RedisSession(server_link, SESSION, Plain())
    began, over = threading.Event(), threading.Event()
    read = tables._lists

    def slow(*arguments: Any) -> Any:
        began.set()
        assert not over.wait(0.3)
        return read(*arguments)

    monkeypatch.setattr(tables, "_lists", slow)

    def commit() -> None:
        assert began.wait(20)
        sender.commit([("put", "v0", b"\x07", -1)])
        over.set()

    thread = threading.Thread(target=commit)
    thread.start()
    found = read_paged(server_link, SESSION, Plain())
    thread.join()
    sender.close()

    assert found.values["v0"][0] == b"\x02"
    assert read_state(server_link, SESSION, Plain()).values["v0"][0] == b"\x07"


def test_what_changed_meanwhile_is_not_taken_for_one_moment(
    server_link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader was stopped for longer than others wait."""
    server_link.client.flushall()
    written(server_link)
    sender = RedisSession(server_link, SESSION, Plain())
    read = tables._lists

    def late(*arguments: Any) -> Any:
        sender.commit([("put", "v0", b"\x07", -1)])  # waits until the freeze is over
        return read(*arguments)

    monkeypatch.setattr(tables, "_lists", late)
    with pytest.raises(SessionBusy, match="changed while it was read"):
        read_paged(server_link, SESSION, Plain(), seconds=0.05)
    sender.close()


# --- ops and records ------------------------------------------------------------------


NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
SPECS = st.builds(
    TaskSpec,
    task_id=NAMES,
    task_data=st.none() | st.binary(min_size=1),
    status=st.just("pending"),
    priority=st.integers(-(2**15), 2**15),
    retry_count=st.integers(0, 99),
    max_retries=st.integers(0, 99),
    execution_strategy=st.sampled_from(["direct", "pass", "skip", "lost", "doubt"]),
    cycle=st.integers(0, 10**9),
    not_before=st.sampled_from([0.0, 0.1, 1e9 + 1 / 3, 1e300]),
    queue=st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
    key=st.integers(1, 10**12),
    crashes=st.integers(0, 9),
)


@given(SPECS)
def test_a_spec_comes_back_as_it_was(spec: TaskSpec) -> None:
    assert spec_of(spec_bytes(spec, Plain()), Plain()) == spec


@given(SPECS, st.integers(1, 10**12), st.sampled_from(["e1t1", "!0123"]))
def test_a_claim_is_its_number_and_its_spec(spec: TaskSpec, number: int, token: str) -> None:
    record = b"%d\x1f%b\x1f%b" % (number, token.encode(), spec_bytes(spec, Plain()))

    assert claim_of(record, Plain()) == Claim(spec, number)


def test_a_spec_is_its_own_whatever_another_thread_reads_meanwhile() -> None:
    spec, other = (TaskSpec(f"t{n}", priority=n, queue=f"q{n}", key=n, crashes=n) for n in (1, 2))
    packed, others = spec_bytes(spec, Plain()), spec_bytes(other, Plain())

    def meanwhile(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == ops.__file__:
            assert spec_of(others, Plain()) == other
        return meanwhile

    tracing = sys.gettrace()
    for _ in range(2):  # the second time it is like the one before
        sys.settrace(meanwhile)
        try:
            found = spec_of(packed, Plain())
        finally:
            sys.settrace(tracing)
        assert found == spec
        assert spec_of(packed, Plain()) == spec


def test_checks_come_before_the_ops() -> None:
    ops = [("put", "x", b"\x01", 7), ("end", 5, 3, "completed", b"\x02"), ("put", "y", b"", -1), ("claim", 2)]

    args = arguments(ops, Plain(), "gpu")

    assert args[:6] == [1, 5, 3, 1, "x", 7]
    assert args[6:] == ["P", "x", b"\x01", "E", 5, b"\x02", "P", "y", b"", "C", 2, "gpu"]


@pytest.mark.parametrize(
    ("task", "priority", "queue"),
    [
        ("a\x1fb", 0, "default"),
        ("a\n", 0, "default"),
        ("caf\udce9", 0, "default"),
        ("a", 0, "x|y"),
        ("a", 0, "x,y"),
        ("a", 0, ""),
        ("a", 2**15, "default"),
        ("a", -(2**15), "default"),
        ("a", 0.5, "default"),
    ],
)
def test_a_spec_that_would_break_the_records_of_others_is_not_sent(
    task: str, priority: int, queue: str
) -> None:
    spec = (task, None, priority, 0, queue, "direct")
    arrive = ("arrive", task, 1, 2, 0, priority, 0, queue, "direct")

    for op in (("enqueue", *spec), ("later", *spec, 9.0), arrive):
        with pytest.raises(GraphError):
            arguments([op], Plain(), "default")


@pytest.mark.parametrize("op", [("put", "caf\udce9", b"", -1), ("append", "caf\udce9", b"")])
def test_a_name_that_cannot_be_sent_is_refused(op: Op) -> None:
    with pytest.raises(GraphError, match="lone surrogates"):
        arguments([op], Plain(), "default")


def test_a_transition_may_be_empty() -> None:
    assert arguments([], Plain(), "*") == [0, 0]


END = ("end", 7, 3, "completed", b"\xc0")
NEW = ("enqueue", "next", None, 2, 1, "default", "direct")
CLAIM = ("claim", 1)


def test_the_everyday_transition_has_few_words() -> None:
    assert turn([END, CLAIM], Plain(), "default") == [7, 3, "default", b"\xc0"]
    assert turn([END, NEW, CLAIM], Plain(), "*") == [7, 3, "*", b"\xc0", "next", 2, 1, "default"]


@pytest.mark.parametrize(
    "ops",
    [
        [CLAIM],
        [END],
        [END, ("claim", 2)],
        [END, ("claim", 0)],
        [("end", 7, 3, "passed"), CLAIM],
        [("end", 7, 3, "failed", "ValueError"), CLAIM],
        [("put", "x", b"\x01", -1), END, CLAIM],
        [END, ("arrive", "join", 1, 2, 2, 0, 0, "default", "direct"), CLAIM],
        [END, (*NEW[:2], b"data", *NEW[3:]), CLAIM],
        [END, (*NEW[:6], "pass"), CLAIM],
        [END, NEW, NEW, CLAIM],
    ],
)
def test_any_other_is_said_in_full(ops: list[Op]) -> None:
    assert turn(ops, Plain(), "default") is None


def test_a_large_result_is_packed_where_its_size_is_judged() -> None:
    with pytest.raises(TooLarge):
        turn([(*END[:4], b"x" * 5000), CLAIM], SealedCells("s", None, limit=4999), "default")


def test_a_name_that_would_break_a_record_is_refused_in_few_words_too() -> None:
    with pytest.raises(GraphError):
        turn([END, ("enqueue", "a\x1fb", *NEW[2:]), CLAIM], Plain(), "default")
