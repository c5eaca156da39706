"""Tokens: who goes on with a session in Redis, whatever happens to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import START, STEP
from tests.unit.sessions.crew import Crew, play_crew
from tests.unit.sessions.moves import Drawn, Seeded
from tests.unit.sessions.scenes import SCENES, Stage

KINDS = ["called", "retired", "fenced", "not begun", "reaped"]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_in_this_scene(scene: Callable[[Stage], None], link: RedisLink) -> None:
    with ExitStack() as crews:

        def stage(**options: Any) -> Crew:
            return crews.enter_context(closing(Crew(link, **options)))

        scene(stage)


def test_work_that_can_be_claimed_has_somebody_who_comes_for_it(link: RedisLink, histories: range) -> None:
    counts: Counter[str] = Counter()

    for seed in histories:
        with closing(Crew(link)) as crew:
            play_crew(crew, Seeded(seed), 60)
            crew.finish()
            counts += crew.counts

    assert [kind for kind in KINDS if not counts[kind]] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data(), moves=st.integers(1, 40))
def test_and_whoever_chooses_what_happens(server_link: RedisLink, data: st.DataObject, moves: int) -> None:
    with closing(Crew(server_link)) as crew:
        play_crew(crew, Drawn(data), moves)
        crew.finish()


# --- broken on purpose ------------------------------------------------------------------


BROKEN = {
    # who goes on
    "nobody retires": ("or (find(mode, 'r', 1, true) and not reaped)", ""),
    "nobody can leave": ("(find(mode, 'q', 1, true) or", "("),
    "a retired token is not void": ("  void(one)\n  for", "  for"),
    "a retired token stays": ("  call('ZREM', P .. 'tok', one)\n", ""),
    "a retired token keeps its owner": ("  call('HDEL', P .. 'own', one)\n", ""),
    "a retired token takes its claims along": (
        "if match(rec, '^[^\\31]*\\31([^\\31]*)') == one then return",
        "if false then return",
    ),
    "a retired token keeps its lease": (
        "call('ZADD', P .. 'tok', 0, one)",
        "call('ZADD', P .. 'tok', 1e15, one)",
    ),
    "whoever retires does not say so": ("  tail = 'retired'\nend\nif reaped", "end\nif reaped"),
    "nobody is reaped": ("if reaped then retire(reaped) end", ""),
    "the living are reaped": (
        "if not lease or (tonumber(lease) > now() * 1000 and not find(mode, '!', 1, true)) then",
        "if not lease then",
    ),
    "the dead are not reaped before their time": (" and not find(mode, '!', 1, true)", ""),
    "nobody gets time to renew": ("if grace and over > 0 and", "if false and"),
    "what nobody renews is never taken": ("(over % 1 == 0 or over < ms - 20000)", "true"),
    "time to renew is from long ago": (" or over < ms - 20000)", ")"),
    "who has left gets time to renew": ("if grace and over > 0 and", "if grace and"),
    "who is not there is reaped": ("if not lease or (", "if lease and ("),
    "the void go on": (
        "  if not outside then return {'fenced'} end\n",
        "  if not outside and not past then return {'fenced'} end\n",
    ),
    "nobody is fenced": ("  if not outside then return {'fenced'} end\n", ""),
    # who is called
    "nobody is called": (
        "if status == 'running' and (all or elsewhere or ends > #out)",
        "if false and (all or elsewhere or ends > #out)",
    ),
    "nobody is called by those who leave": ("local all = #out == 0 or find", "local all = find"),
    "nobody is called for other queues": ("(all or elsewhere or ends > #out)", "(all or ends > #out)"),
    "nobody is called for what became free": ("(all or elsewhere or ends > #out)", "(all or elsewhere)"),
    "what is due calls nobody": ("  if f[9] ~= own then elsewhere = true end\n", ""),
    "what is new calls nobody": ("    if queue ~= own then elsewhere = true end\n", ""),
    "a token that was lost calls nobody": ("not (waits and call('ZSCORE', P .. 'tok', waits))", "not waits"),
    "somebody is called twice": ("not (waits and call('ZSCORE', P .. 'tok', waits))", "true"),
    "somebody is called for nothing": ("      if head and (left", "      if (left"),
    "who is called is not listed": (
        "        call('ZADD', P .. 'tok', math.floor(now() * 1000) + 1000, id)\n",
        "",
    ),
    "who is called is not waited for": ("        call('HSET', P .. 'qt', name, id)\n", ""),
    "nobody is told who is called": ("        tail = tail .. '\\31' .. id .. '\\31' .. name\n", ""),
    "a session without a fleet calls": (" and find(flags, 'f', 1, true) then", " then"),
    # the end
    "an end leaves tokens": ("    call('DEL', P .. 'tok', P .. 'own', P .. 'qt')\n", ""),
    "an end leaves tokens that may go on": ("      if find(one, '^e') then void(one) end\n", ""),
    "an end is not noted": ("flags = string.gsub(flags, 'e', '') .. 'e'", ""),
    "an end comes while somebody works": (
        "  if #out == 0 and held == 0 then\n    if was",
        "  if #out == 0 then\n    if was",
    ),
    "an end has no time": ("expires = call('HGET', P .. 'h', status == 'completed' and 'ttl' or 'kept')", ""),
    "an end has the wrong time": ("status == 'completed' and 'ttl' or 'kept'", "'kept'"),
    "what goes on expires": ("    expires = 'never'\n", ""),
    "an end goes on": ("    flags = string.gsub(flags, 'e', '')\n    expires", "    expires"),
    "ready specs do not expire": ("do set('q:' .. name) end", "do end"),
    "tables do not expire": ("'c h dl dead g", "'c h dl g"),
    "completions leave no line": ("    ended(recs[k], 'completed')\n", ""),
    "other ends leave no line": ("    ended(recs[k], how)\n", ""),
    "a turn leaves no line": ("(flags == 'f' or flags == '')", "flags ~= 'e'"),
    "being written is an end": ("' init paused", "' paused"),
    "a pause is an end": ("' init paused closing", "' init closing"),
    "a turn enqueues for its own queue": (
        "(not task or ARGV[13] == queues)",
        "true",
    ),
    "in full a turn does not retire": ("sub(mode, 2), prev, 1, k", "'', prev, 1, k"),
    "nobody can help": ("local all = #out == 0 or find(mode, 's', 1, true)", "local all = #out == 0"),
    "somebody is called who may not claim": (
        "held < (tonumber(cap) or math.huge) and queues or ''",
        "queues",
    ),
    "somebody is called for a step too many": (
        "local left = max_steps == '' or tonumber(max_steps) > steps + held",
        "local left = true",
    ),
    "nobody is called for what is no step": ("(left or not find(head, DIRECT))", "left"),
    "a slice calls for its own queue": ("(all or name ~= own) and call('ZRANGE'", "call('ZRANGE'"),
    "a session begins twice": ("if find(mode, 'B', 1, true) and key ~= '1' then return {'begun'} end", ""),
    "lists do not expire": ("then set('a:' .. sub(name, 2)) end", "then end"),
}

BROKEN_START = {
    "the void are started": ("if not call('ZSCORE', P .. 'tok', token) then return {'fenced'} end", ""),
    "a token is given to two": ("if other ~= owner or not began", "if not began"),
    "a token that was begun on waits": ("        call('HDEL', P .. 'qt', queue)\n", ""),
    "nobody owns a token": ("call('HSET', P .. 'own', token, owner .. '\\30' .. queue)\n", ""),
    "a token has no lease": ("call('ZADD', P .. 'tok', now + ARGV[3], token)\n", ""),
    "a token has no queue": ("        queue = waiting[n]\n", ""),
}


HISTORIES = 40


@pytest.mark.parametrize("name", BROKEN)
def test_each_break_of_the_step_is_seen(name: str, server_link: RedisLink) -> None:
    old, new = BROKEN[name]
    assert STEP.count(old) == 1, "it is to be broken in one place"

    assert convicted(server_link, step=STEP.replace(old, new))


@pytest.mark.parametrize("name", BROKEN_START)
def test_each_break_of_the_start_is_seen(name: str, server_link: RedisLink) -> None:
    old, new = BROKEN_START[name]
    assert START.count(old) == 1, "it is to be broken in one place"

    assert convicted(server_link, start=START.replace(old, new))


def test_nothing_is_seen_where_nothing_is_broken(server_link: RedisLink) -> None:
    assert not convicted(server_link, step=STEP + "-- as it is")


def convicted(link: RedisLink, **scripts: str) -> bool:
    """Whether a scene, or a history of many moves, goes wrong."""
    with ExitStack() as crews:

        def stage(**options: Any) -> Crew:
            return crews.enter_context(closing(Crew(link, **scripts, **options)))

        try:
            for scene in SCENES:
                scene(stage)
                crews.close()
            for seed in range(HISTORIES):
                crew = stage()
                play_crew(crew, Seeded(seed), 60)
                crew.finish()
                crews.close()
        except (AssertionError, GraflowError, ValueError, KeyError, TypeError, IndexError):
            return True
        except pytest.fail.Exception:  # something should have been refused
            return True
    return False
