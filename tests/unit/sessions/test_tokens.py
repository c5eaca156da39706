"""Tokens: who goes on with a session in Redis, whatever happens to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.links.redis import RedisLink
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
