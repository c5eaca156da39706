"""Errors: what happened, to which ids, what to do; and they survive a process boundary."""

from __future__ import annotations

import pickle

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    GraflowError,
    GraphError,
    Interrupted,
    NotStorable,
    SessionBusy,
    TaskTimeout,
    UnknownTask,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GraflowError)]


def test_the_text_is_what_happened_and_then_what_to_do() -> None:
    error = GraflowError("The disk is full.", hint="Make room.", path="x")

    assert str(error) == "The disk is full. Make room."
    assert str(GraflowError("The disk is full.")) == "The disk is full."


def test_what_a_terminal_would_obey_is_not_in_the_text() -> None:
    error = CheckpointError(
        "key \x1b[2J\r of\u202e a\nb\tc é 👩\u200d💻", hint="on \x9b0m\x7f", host="\x1b[2J"
    )

    assert str(error) == "key ?[2J? of? a\nb\tc é 👩\u200d💻 on ?0m?"
    assert error.host == "\x1b[2J"
    assert error.args == (error.message,)


def test_ids_are_attributes() -> None:
    error = SessionBusy("busy", session="s", owner=7)

    assert (error.session, error.owner) == ("s", 7)


def test_an_id_that_was_not_given_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'SessionBusy' has no attribute 'task'"):
        _ = SessionBusy("busy", session="s").task


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_crosses_a_process_boundary_whole(kind: type[GraflowError]) -> None:
    error = kind("It broke.", hint="Mend it.", task="a", numbers=[1, 2])

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is kind
    assert str(back) == str(error) == "It broke. Mend it."
    assert (back.task, back.numbers, back.hint) == ("a", [1, 2], "Mend it.")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (CheckpointError, ValueError),
        (CheckpointNotFound, FileNotFoundError),
        (NotStorable, TypeError),
        (GraphError, ValueError),
        (UnknownTask, KeyError),
        (TaskTimeout, TimeoutError),
        (errors.BadSessionId, ValueError),
    ],
)
def test_kinds_are_also_what_python_calls_them(kind: type[GraflowError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("It broke.")


def test_an_interrupted_session_asks_its_restarter_to_try_again() -> None:
    error = Interrupted("stopped at step 3", "s")

    assert (error.code, error.session, str(error)) == (75, "s", "stopped at step 3")
    assert not isinstance(error, Exception)  # nobody swallows it by accident
