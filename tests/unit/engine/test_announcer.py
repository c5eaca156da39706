"""What observers and the log are told, and when; what is kept of an exception."""

from __future__ import annotations

import logging

import pytest

from graflow_ckpt import Event
from graflow_ckpt.engine.announcer import MESSAGE, TRACEBACK, Account
from tests.loops import chain


def test_observers_are_told_in_order_after_the_commit() -> None:
    seen: list[Event] = []

    def a(context) -> None:
        context.progress(1, 4)

    chain(a, b=lambda: None, session_id="s", durability="checkpoint", observers=[seen.append]).execute()

    assert [(e.kind, e.task, e.step) for e in seen] == [
        ("session_started", "", 0),
        ("task_started", "a", 0),
        ("task_progress", "a", 0),
        ("task_ended", "a", 1),
        ("task_started", "b", 1),
        ("task_ended", "b", 2),
        ("checkpoint_saved", "", 2),
        ("session_ended", "", 2),
    ]
    assert {event.session for event in seen} == {"s"}
    assert seen[0].facts["resumed"] is False
    assert seen[2].facts == {"done": 1, "total": 4}
    assert seen[3].facts["outcome"] == "done"
    assert seen[-1].facts["status"] == "completed"


def test_an_observer_that_fails_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def bad(event: Event) -> None:
        raise ValueError("observer")

    assert chain(a=lambda: 1, observers=[bad, lambda event: seen.append(event.kind)]).execute() == 1

    assert seen == ["session_started", "task_started", "task_ended", "session_ended"]
    assert sum("failed on task_ended" in record.getMessage() for record in caplog.records) == 1


def test_a_failure_is_logged_once_with_stable_keys_and_says_whether_it_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def a() -> None:
        raise OSError("x")

    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match="x"):
        chain(a, max_retries=1, session_id="s").execute()

    first, second = [r for r in caplog.records if r.name == "graflow_ckpt.engine"]
    assert first.getMessage() == "task a failed, it runs again: OSError: x"
    assert second.getMessage() == "task a failed: OSError: x"
    assert (first.session, first.task, first.attempt) == ("s", "a", 1)
    assert second.attempt == 2


def test_the_logger_of_a_task_has_the_same_keys(caplog: pytest.LogCaptureFixture) -> None:
    def a(context) -> None:
        context.logger.warning("hello %s", "there")

    chain(a, session_id="s").execute()

    (record,) = [r for r in caplog.records if r.getMessage() == "hello there"]
    assert (record.session, record.task, record.attempt) == ("s", "a", 1)


def test_the_exception_is_the_tasks_own_with_the_command_that_goes_on() -> None:
    error = OSError("mine")

    def a() -> None:
        raise error

    with pytest.raises(OSError, match="mine") as raised:
        chain(a, session_id="s", store="elsewhere").execute()

    assert raised.value is error
    assert error.__notes__ == ["Session s can go on: graflow-ckpt resume s --store elsewhere"]


# --- what is kept of an exception -----------------------------------------------------


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """With a traceback."""
    try:
        raise error from cause
    except BaseException as found:  # noqa: BLE001  whatever it was
        return found


class Mute(Exception):
    """Cannot say what it is about."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Wild(Exception):
    """Its notes are no notes."""

    __notes__ = 7


def test_type_message_and_traceback_come_back() -> None:
    account = Account.of(raised(ValueError("no such row: 7\nof nine")), traced=True)

    back = Account.read(account.text)

    assert back == account
    assert (back.type, back.message) == ("ValueError", "no such row: 7\nof nine")
    assert back.traceback.startswith("Traceback (most recent call last):\n")
    assert back.traceback.endswith("ValueError: no such row: 7\nof nine\n")
    assert account.text.partition("\n")[0] == back.line == "ValueError: no such row: 7"


def test_without_a_traceback_it_is_what_python_would_say() -> None:
    assert Account.of(raised(KeyError("a")), traced=False).text == "KeyError: 'a'"


def test_causes_and_notes_are_in_the_traceback() -> None:
    error = raised(ValueError("outer"), raised(OSError("inner")))
    error.add_note("while it was late")

    text = Account.of(error, traced=True).traceback

    assert text.index("OSError: inner") < text.index("direct cause") < text.index("ValueError: outer")
    assert "while it was late" in text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it did not: work", Account("", "it did not: work")),
        ("max_steps=3 reached", Account("", "max_steps=3 reached")),
        ("WorkerDied: it was killed", Account("WorkerDied", "it was killed")),
        ("lib.Error: a: b", Account("lib.Error", "a: b")),
        ("", Account("", "")),
    ],
)
def test_other_reasons_are_their_own_message(text: str, found: Account) -> None:
    assert Account.read(text) == found
    assert found.line == text


def test_an_exception_that_cannot_say_what_it_is_about_is_kept_all_the_same() -> None:
    account = Account.of(raised(Mute()), traced=True)

    assert account.message == "(its message cannot be made: RuntimeError)"
    assert "Mute: <exception str() failed>" in account.traceback


def test_a_traceback_that_cannot_be_made_is_no_reason_to_fail() -> None:
    account = Account.of(raised(Wild("x")), traced=True)

    assert (account.type, account.message) == ("Wild", "x")
    assert account.traceback


def test_what_is_huge_has_an_end_and_the_frames_are_still_there() -> None:
    account = Account.of(raised(ValueError("a" * 10_000_000 + "z")), traced=True)

    assert len(account.message) < MESSAGE + 100
    assert f"({10_000_001 - MESSAGE} characters are left out)" in account.message
    assert account.message.endswith("z")
    assert "raise error from cause" in account.traceback
    assert len(account.text) < MESSAGE + TRACEBACK + 300


def test_huge_messages_do_not_push_the_frames_out() -> None:
    error = raised(ValueError("b" * 1_000_000), raised(OSError("a" * 1_000_000)))

    assert "direct cause" in Account.of(error, traced=True).traceback


def test_a_deep_traceback_keeps_both_ends() -> None:
    def deeper(n: int) -> None:
        if n == 0:
            raise ValueError("at the bottom")
        (deeper if n % 2 else further)(n - 1)

    def further(n: int) -> None:
        deeper(n)

    with pytest.raises(ValueError, match="bottom") as found:
        deeper(400)
    text = Account.of(found.value, traced=True).traceback

    assert len(text) < TRACEBACK + 100
    assert text.startswith("Traceback")
    assert text.endswith("ValueError: at the bottom\n")


def test_what_no_server_would_take_is_escaped() -> None:
    account = Account.of(raised(ValueError("file \udcff and \x1e mark")), traced=True)

    assert account.message == "file \\udcff and   mark"
    account.text.encode()
    assert Account.read(account.text) == account
