"""What is taken from workers that may be dead, and when."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.engine import reaping
from graflow_ckpt.engine.reaping import release_the_dead
from graflow_ckpt.stores.around.keys import new_key
from tests.stretch import until
from tests.unit.engine.shared_sessions import Holder, context_of, named


@pytest.fixture
def context(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return context_of(redis_url, named("a"), named("b"))


def lapsed(context: Any) -> Holder:
    """One who has claimed a task, and could not renew its lease for longer than that."""
    context.schedule_start()
    holder = Holder(context)
    assert holder.commit([("claim", 1)])
    holder.session.renew(-1)
    return holder


def looks(context: Any) -> bool:
    return release_the_dead(context.home.facts.link, "s", context.home.cells)


def test_a_lease_that_is_over_is_taken_after_its_worker_had_time_to_renew_it(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "GRACE", 0.0)
    holder = lapsed(context)

    assert not looks(context)
    until(lambda: looks(context) and not context.home.facts.holders())

    with pytest.raises(Fenced):
        holder.commit([("claim", 0)])


def test_one_that_comes_back_before_keeps_what_it_holds_whoever_looks(context: Any) -> None:
    """The server was away, and another process was back first."""
    holder = lapsed(context)

    for _ in range(2):
        looks(context)
    holder.session.renew(15)
    looks(context)

    assert len(context.home.facts.holders()) == 1
    holder.leave()


def test_a_process_that_begins_waits_for_those_whose_leases_are_over(context: Any) -> None:
    holder = lapsed(context)

    context.execute()

    with pytest.raises(Fenced):
        holder.commit([("claim", 0)])
    assert context.status == "completed"
