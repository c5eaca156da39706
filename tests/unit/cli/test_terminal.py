"""How a command speaks."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from graflow_ckpt.cli.terminal import Manner, along, bar, clean, counter
from graflow_ckpt.core.errors import BadSessionId, GraflowError, InDoubt, SessionBusy
from graflow_ckpt.core.protocols import Owner


def test_on_a_pipe_a_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Manner().table(("name", "steps"), [("a", 7), ("longer", 1234), ("n", None)], right=("steps",))

    assert capsys.readouterr().out == "NAME    STEPS\na           7\nlonger   1234\nn\n"


NARROW = ("session", "status", "ready", "running", "delayed", "failed", "tokens", "age", "workflow", "reason")
ROW = (
    "square-seven-e4abe9aeaf7b",
    "completed",
    0,
    0,
    0,
    1,
    0,
    "35 s",
    "square",
    "ValueError: it is no number",
)


def test_on_a_narrow_terminal_ids_stay_whole_and_columns_of_zeros_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")

    Manner().table(NARROW, [ROW, ROW], right=("ready", "running", "delayed", "failed", "tokens", "age"))

    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(ROW[0] in line and "completed" in line for line in lines) == 2
    assert "failed" in lines[0]
    assert "delayed" not in lines[0]


def test_where_no_table_has_room_the_terminal_breaks_lines_and_no_word_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")

    Manner().table(NARROW, [ROW])

    assert capsys.readouterr().out.splitlines()[1].startswith("square-seven-e4abe9aeaf7b  completed  ")


def test_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    manner = Manner()

    manner.table(("name",), [("\x1b[2Jgone",)])
    manner.note("\x1b]0;title\x07")

    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "?[2Jgone" in told.out


def test_lone_surrogates_do_not_stop_a_table() -> None:
    clean("caf\udce9").encode()


@pytest.mark.parametrize(
    ("error", "status"),
    [(GraflowError("no"), 1), (InDoubt("which?", tasks=["a"]), 3), (BadSessionId("bad"), 2)],
)
def test_an_error_has_a_status_for_who_called(error: GraflowError, status: int) -> None:
    assert Manner().failed(error) == status


def test_an_error_is_its_message_its_hint_and_its_notes(capsys: pytest.CaptureFixture[str]) -> None:
    error = GraflowError("It broke.", hint="Mend it.")
    error.add_note("at x.py:3")

    Manner().failed(error)

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["graflow-ckpt: error: It broke.", "  Mend it.", "  at x.py:3"]


def test_with_traceback_an_error_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    manner = Manner()
    manner.traceback = True
    try:
        raise GraflowError("It broke.", hint="Mend it.")
    except GraflowError as error:
        manner.failed(error)

    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "Mend it." in told


def test_an_error_as_json_has_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    manner = Manner()
    manner.json = True
    owner = Owner(7, "1", "b", "n", "host", "argv", "now")

    manner.failed(SessionBusy("Busy.", hint="Wait.", session="s", owner=owner, tags={"b", "a"}))

    document = json.loads(capsys.readouterr().out)
    assert document["error"] == "SessionBusy"
    assert (document["message"], document["hint"]) == ("Busy.", "Wait.")
    assert document["owner"]["pid"] == 7
    assert document["tags"] == ["a", "b"]


def test_a_path_is_whole_on_any_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    path = "checkpoints/session_night_step_20_1795037373-21.pkl"

    for rest in (("night", "train", "completed"), ("night", "train", "x" * 60)):
        Manner().table(("path", "session", "workflow", "status"), [(path, *rest)])

        assert path in capsys.readouterr().out


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the place of standard error."""
    made = Screen()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_on_a_terminal_it_is_shown_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    assert list(along(["a", "b"], "copying", show=True)) == ["a", "b"]

    assert "copying" in seen.getvalue()
    assert "2/2" in seen.getvalue()


def test_each_that_is_done_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    with counter("deleting", 4, show=True) as done:
        done("one")

    assert "1/4" in seen.getvalue()


def test_nobody_who_reads_json_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    with bar("looking", show=False) as told:
        told(1, 2)

    assert seen.getvalue() == ""


def test_nobody_who_reads_a_pipe_sees_one(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("looking") as told:
        told(1, 2)

    assert capsys.readouterr().err == ""
