"""What is kept of an exception, whatever it does when it is asked."""

from __future__ import annotations

import pytest

from graflow_ckpt.engine.account import MESSAGE, TRACEBACK, Account


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
