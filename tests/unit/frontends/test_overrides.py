"""Overrides: how a command line changes the workflows of a program that knows nothing of it."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.policy import EveryTask
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.frontends.overrides import Overrides, Planned


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


FIRST, SECOND = Named("first"), Named("second")
SETTINGS = Settings(workflow="first")


def session(given: Overrides, workflow: Named, own: str | None = None) -> str | None:
    return given.apply(workflow, own, SETTINGS, "checkpoints")[0]


def test_nothing_said_changes_nothing() -> None:
    assert Overrides().apply(FIRST, "s", SETTINGS, "here") == ("s", SETTINGS, "here")


def test_settings_policy_observers_and_store_are_those_of_the_command_line() -> None:
    given = Overrides()
    given.store = "there"
    given.policy = EveryTask()
    given.settings = {"durability": "journal"}
    mine, theirs = (lambda event: None), (lambda event: None)
    given.observers = (mine,)

    _, settings, store = given.apply(FIRST, None, Settings(observers=(theirs,)), "here")

    assert (settings.durability, settings.policy, store) == ("journal", EveryTask(), "there")
    assert settings.observers == (theirs, mine)


def test_the_session_is_the_first_workflows_and_others_get_ids_made_from_it() -> None:
    given = Overrides()
    given.session = "s"

    assert session(given, FIRST, "own") == "s"
    assert session(given, SECOND) == "s-second"
    assert session(given, SECOND, "own") == "own"
    assert session(given, FIRST) == "s"  # the next execute of the same workflow


def test_the_session_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "env")
    given = Overrides()

    assert session(given, FIRST) == "env"
    other = Overrides()
    other.session = "said"
    assert session(other, FIRST) == "said"


def test_an_empty_session_of_the_environment_leaves_the_one_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "")

    assert session(Overrides(), FIRST, "own") == "own"


def test_what_is_said_about_one_workflow_is_not_about_another() -> None:
    given = Overrides()
    given.target, given.session, given.store = "second", "s", "there"

    assert given.apply(FIRST, "own", SETTINGS, "here") == ("own", SETTINGS, "here")
    assert session(given, SECOND) == "s"
    assert (given.concerns(FIRST), given.concerns(SECOND)) == (False, True)


def test_only_the_chosen_workflow_runs() -> None:
    given = Overrides()
    assert given.wants(FIRST)
    given.only = "second"

    assert not given.wants(FIRST)
    assert given.wants(SECOND)
    assert given.executed == ["first", "second"]


def test_workflows_are_noted_for_a_command_line_that_collects_them() -> None:
    given = Overrides()
    given.meet(FIRST)
    given.collecting = True
    given.meet(SECOND)

    assert given.met == [SECOND]


def test_planning_ends_the_program_before_anything_is_touched() -> None:
    given = Overrides()
    given.prepared(Planned(FIRST, ("a",)))
    given.planning, given.target = True, "first"
    given.prepared(Planned(SECOND, ("a",)))

    with pytest.raises(Planned) as caught:
        given.prepared(Planned(FIRST, ("a", "b"), {"rows": 3}, 7))

    assert (caught.value.workflow, caught.value.starts) == (FIRST, ("a", "b"))
    assert (caught.value.inputs, caught.value.max_steps) == ({"rows": 3}, 7)
    assert not isinstance(caught.value, Exception)


def test_a_program_that_is_planned_touches_no_session() -> None:
    given = Overrides()
    given.planning, given.session = True, "s"

    found, settings, store = given.apply(FIRST, "own", Settings(durability="journal", resume="must"), "here")

    assert (found, settings.durability, settings.resume, store) == (None, "none", "auto", "here")
