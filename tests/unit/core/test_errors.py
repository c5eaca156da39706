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
from graflow_ckpt.core.redaction import HIDDEN, redacted, redacted_argv

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


# --- secrets ----------------------------------------------------------------------------


NAMES = """password db_password PASSWD secret client-secret token access_token accessToken api_key apiKey
X.Api-Key tokens token_id tokenIds Authorization credentials session_cookie pass private-key"""


@pytest.mark.parametrize("name", NAMES.split())
def test_values_of_keys_that_name_secrets_are_hidden(name: str) -> None:
    assert redacted({name: "hunter2"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["epoch", "loss", "passed", "compass", "author", "spinner", "keyboard", "path", "tokenizer"],
)
def test_other_values_are_shown(name: str) -> None:
    assert redacted({name: "visible"}) == {name: "visible"}


def test_secrets_deep_inside_and_in_urls_are_hidden() -> None:
    found = redacted({"db": [{"password": ["a", "b"]}, "postgres://me:hunter2@host/x"], "n": 1})

    assert found == {"db": [{"password": HIDDEN}, f"postgres://me:{HIDDEN}@host/x"], "n": 1}


def test_an_empty_secret_is_seen_to_be_empty() -> None:
    assert redacted({"token": None, "password": ""}) == {"token": None, "password": ""}


def test_arguments_after_the_name_of_a_secret_are_hidden() -> None:
    argv = [
        "train.py",
        "--password",
        "hunter2",
        "--token=abc",
        "--epochs",
        "3",
        "--api-key",
        "--verbose",
        "x",
    ]

    assert redacted_argv(argv) == [
        "train.py", "--password", HIDDEN, f"--token={HIDDEN}", "--epochs", "3", "--api-key", "--verbose", "x",
    ]  # fmt: skip


def test_a_number_of_tokens_is_no_secret() -> None:
    counts = {"tokens": 7, "token_ids": 7.5, "token": 7}

    assert redacted(counts) == counts
    assert redacted({"pin": 1234}) == {"pin": HIDDEN}
