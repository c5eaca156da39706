"""The checkpoints of a session in Redis: how they are numbered, whose turn it is, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, KeepLast
from graflow_ckpt.core.errors import CheckpointError, NoSession, ServerGone
from graflow_ckpt.engine import shared_home
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.sessions.redis import tables
from graflow_ckpt.sessions.redis.tables import frozen
from tests.proxy import Proxy
from tests.unit.engine.shared_sessions import Holder, context_of, home_of, named


@pytest.fixture
def context(redis_url: str) -> Iterator[Any]:
    made = context_of(redis_url, named("a"), named("b"))
    made.schedule_start()
    yield made
    made.session.close()


@pytest.fixture
def home(context: Any) -> SharedHome:
    return home_of(context)


def steps(context: Any, count: int) -> None:
    """So many transitions."""
    for number in range(count):
        context.channel.set("n", number)


# --- numbers -------------------------------------------------------------------------------


def test_each_cut_has_the_next_number_and_follows_the_one_before(home: SharedHome) -> None:
    first, second = home.cut("request", {"n": 1}), home.cut("policy", None)

    assert (first.sequence, second.sequence) == (1, 2)
    assert (first.parent, second.parent) == (None, first.checkpoint_id)
    assert (first.cause, first.user_metadata, first.backend) == ("request", {"n": 1}, shared_home.BACKEND)
    assert home.last == second


def test_paths_never_collide_and_are_known_before(home: SharedHome) -> None:
    reserved = [home.reserve(3, {}).path for _ in range(3)]

    saved = home.cut("request", None, path=reserved[1])

    assert len({*reserved, home.cut("policy", None).path}) == 4
    assert saved.path == reserved[1]
    assert "_step_3_" in saved.path


def test_a_cut_that_shows_an_earlier_moment_than_another_is_taken_anew(
    home: SharedHome, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has committed and cut between the reading and the numbering."""
    other, read, times = home_of(context), home._read, []

    def slow(portable: bool) -> Any:
        state = read(portable)
        if not times:
            times.append(1)
            steps(context, 2)
            other.cut("policy", None)
        return state

    monkeypatch.setattr(home, "_read", slow)
    saved = home.cut("request", None)

    assert other.last is not None
    assert (other.last.sequence, saved.sequence) == (1, 2)
    assert saved.transition >= other.last.transition


def test_a_session_that_others_cut_all_the_time_is_given_up_by_name(
    home: SharedHome, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, read = home_of(context), home._read

    def slow(portable: bool) -> Any:
        state = read(portable)
        steps(context, 1)
        other.cut("policy", None)
        return state

    monkeypatch.setattr(home, "_read", slow)
    with pytest.raises(CheckpointError, match="changes faster than it can be read"):
        home.cut("request", None)


def test_a_cut_of_a_session_that_is_gone_leaves_nothing_behind(home: SharedHome, context: Any) -> None:
    context.home.facts.link.client.flushall()

    for call in (
        lambda: home.cut("request", None),
        lambda: home.reserve(1, {}),
        lambda: home.facts.cut_failed(1),
    ):
        with pytest.raises(NoSession):
            call()
    assert context.home.facts.link.client.dbsize() == 0


# --- what is in it -------------------------------------------------------------------------


def test_a_portable_one_is_read_by_pages_if_it_is_large(
    home: SharedHome, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_home, "MANY", 6)
    read = []
    monkeypatch.setattr(shared_home, "read_paged", lambda *a: read.append(1) or tables.read_paged(*a))
    steps(context, 1)
    home.cut("request", None, portable=True)
    assert read == []
    for number in range(5):
        context.channel.set(f"v{number}", number)

    saved = home.cut("request", None, portable=True)

    assert read == [1]
    found = ExecutionContext.resume(saved.path)
    assert [found.get_channel().get(f"v{number}") for number in range(5)] == [0, 1, 2, 3, 4]
    assert found.task_queue.get_pending_tasks() == ["a", "b"]


def test_somebody_else_who_reads_it_by_pages_is_waited_for(
    home: SharedHome, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_home, "MANY", 0)
    with frozen(context.home.facts.link, "s", 0.2):
        saved = home.cut("request", None, portable=True)

    assert saved.steps == 0


def test_what_else_is_known_goes_along(home: SharedHome, context: Any) -> None:
    context.session.commit([("cap", 3)])

    carried = home.carried()

    assert (carried["workflow"], carried["cap"], carried["flags"]) == ("w", "3", "")
    assert "epoch" not in carried


def test_a_path_leads_to_the_store_that_it_names(home: SharedHome, tmp_path: Path, redis_url: str) -> None:
    assert home.cut("request", None, path="elsewhere/mine.pkl").path == "elsewhere/mine.pkl"
    assert Path("elsewhere/mine.meta.json").is_file()
    assert CheckpointManager.verify("elsewhere/mine.pkl").home == f"file://{tmp_path}/checkpoints"


# --- policies ------------------------------------------------------------------------------


def test_one_worker_at_a_time_has_its_turn(home: SharedHome, context: Any) -> None:
    other = home_of(context)

    with home.facts.turn() as mine, other.facts.turn() as theirs, other.facts.turn(0.05) as later:
        assert (mine, theirs, later) == (True, False, False)
    with other.facts.turn() as theirs:
        assert theirs


def test_a_turn_whose_reply_was_lost_is_no_turn_of_another(proxy: Proxy) -> None:
    context = context_of(proxy.url, named("a"))
    context.schedule_start()
    first, second = home_of(context).facts, home_of(context).facts
    first.last_cut()  # it is connected
    proxy.drop_next_reply(b"graflow:{s}:c")

    with pytest.raises(ServerGone), first.turn():
        pass

    assert proxy.dropped()
    with second.turn() as theirs:
        assert theirs
    proxy.drop_next_reply(b"graflow:{s}:c")
    with first.turn(0.0, context.session.patiently) as mine:
        assert mine
        assert proxy.dropped()
    context.session.close()


def test_who_was_too_slow_does_not_end_the_turn_of_the_next_one(home: SharedHome, context: Any) -> None:
    second, third = home_of(context).facts, home_of(context).facts

    with ExitStack() as slow, ExitStack() as next_one:
        assert slow.enter_context(home.facts.turn())
        home.facts.link.client.delete("graflow:{s}:cutting")  # as the server does when its time is over
        assert next_one.enter_context(second.turn())
        slow.close()

        with third.turn() as theirs:
            assert not theirs


def test_the_turn_of_a_session_that_is_gone_leaves_nothing_behind(home: SharedHome) -> None:
    home.facts.link.client.flushall()

    with pytest.raises(NoSession), home.facts.turn():
        pass

    assert home.facts.link.client.dbsize() == 0


def test_the_last_cut_is_known_to_all(home: SharedHome, context: Any) -> None:
    other = home_of(context)
    before = other.facts.last_cut()
    holder = Holder(context)
    (claim,) = holder.commit([("claim", 1)])
    assert home.facts.line()["held"] == "1"
    holder.commit([("end", claim.spec.key, claim.number, "completed", b"\x01")])
    holder.leave()

    home.cut("request", None)

    assert before[0] == 0
    assert before[1] >= 0  # since the session began
    assert other.facts.last_cut()[0] == 1
    assert other.facts.last_cut()[1] < 60
    assert home.facts.line()["held"] == "0"


def test_a_save_that_failed_counts_as_the_last_look(home: SharedHome) -> None:
    home.facts.cut_failed(7)

    assert home.facts.last_cut()[0] == 7


def unheard(kind: str, **facts: object) -> None:
    """There are no observers."""


def test_the_last_cuts_of_policies_are_kept_whoever_made_them(home: SharedHome, context: Any) -> None:
    homes = [home, home_of(context), home_of(context)]
    asked = home.cut("request", None)
    made = []
    for number in range(7):
        one = homes[number % 3]
        made.append(one.cut("policy", None).path)
        one.tidy(KeepLast(3), emit=unheard)

    left = [m.path for m in reversed(CheckpointManager.list_checkpoints("s"))]
    assert left == [asked.path, *made[-3:]]


def test_a_cut_that_cannot_be_taken_away_stays_and_is_logged(
    home: SharedHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str) -> bool:
        raise PermissionError(path)

    home.cut("policy", None)
    home.tidy(KeepLast(1), emit=unheard)
    home.cut("policy", None)
    monkeypatch.setattr(home.store, "delete", refuse)
    home.tidy(KeepLast(1), emit=unheard)

    assert "stays" in caplog.text
