"""Words of the command line, and facts as words."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from graflow_ckpt.cli import words
from graflow_ckpt.cli.options import checkpoint_paths, session_names
from graflow_ckpt.cli.terminal import Manner, clean
from graflow_ckpt.core.errors import BadSessionId, GraflowError, InDoubt, SessionBusy
from graflow_ckpt.core.policy import EitherPolicy, EveryN, EverySeconds, Policy
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.addresses import parse
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.checkpoint import stocked

CONTEXT = click.Context(click.Command("test"))
PARAMETER = click.Option(["--test"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=1", 1), ("k=1.5", 1.5), ("k=true", True), ("k=null", None), ('k={"a": [1]}', {"a": [1]}),
        ("k=text", "text"), ("k=", ""), ("k=a=b", "a=b"), ('k="1"', "1"), ("k=[1", "[1"),
    ],
)  # fmt: skip
def test_an_input_is_json_if_it_parses_and_text_if_not(text: str, value: object) -> None:
    assert words.parse_inputs(CONTEXT, PARAMETER, [text]) == {"k": value}


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ([], None), (["10"], EveryN(10)), (["30s"], EverySeconds(30)), (["1.5m"], EverySeconds(90)),
        (["2h"], EverySeconds(7200)), (["250ms"], EverySeconds(0.25)),
        (["10", "30s"], EitherPolicy((EveryN(10), EverySeconds(30)))),
    ],
)  # fmt: skip
def test_every_is_parsed_into_policies_that_combine(given: list[str], policy: Policy | None) -> None:
    assert words.parse_every(CONTEXT, PARAMETER, given) == policy


UNIT = "expected a number and a unit, such as 90s or 7d"


@pytest.mark.parametrize(
    ("parse", "given", "why"),
    [
        *((words.parse_inputs, given, None) for given in (["k"], ["=1"], ["k=1", "k=2"])),
        *((words.parse_every, [item], None) for item in ("0", "0s", "-1", "1.5", "10x", "s", "")),
        *((words.parse_age, given, UNIT) for given in ("7", " 7 ", "7.5", "soon", "", "7 d", "-7d")),
        *((words.parse_answers, [item], None) for item in ("pay", "pay=maybe", "=skip")),
        (words.parse_period, "soon", "'soon' is no time"),
    ],
)
def test_what_cannot_be_parsed_is_refused(parse: Any, given: Any, why: str | None) -> None:
    with pytest.raises(click.BadParameter, match=why):
        parse(CONTEXT, PARAMETER, given)


def test_an_age_with_a_unit_is_one() -> None:
    given = ("7d", " 1.5h", "0s", None)
    assert [words.parse_age(CONTEXT, PARAMETER, text) for text in given] == [604_800.0, 5400.0, 0.0, None]


@pytest.mark.parametrize("given", [["10"], ["30s"], ["1.5m", "7"], ["1", "2", "3s"]])
def test_a_policy_can_be_typed_again(given: list[str]) -> None:
    policy = words.parse_every(CONTEXT, PARAMETER, given)
    assert policy is not None

    again = words.policy_of(words.policy_text(policy).split())

    assert again is not None
    assert words.policy_text(again) == words.policy_text(policy)
    assert again.period == policy.period


def test_answers_name_a_task_and_what_to_do_with_it() -> None:
    assert words.parse_answers(CONTEXT, PARAMETER, ["pay=skip", "a=b=rerun"]) == (
        ("pay", "skip"),
        ("a=b", "rerun"),
    )


def test_the_command_that_resumes_can_be_pasted_into_a_shell() -> None:
    assert words.resume_command("s", "checkpoints") == "graflow-ckpt resume s"
    assert words.resume_command("s", "my store", "--max-steps", "4") == (
        "graflow-ckpt resume s --store 'my store' --max-steps 4"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"),
        (200000, "2 d"),
    ],
)  # fmt: skip
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert words.age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "?"), (0, "0 B"), (999, "999 B"), (5700, "5.7 kB"), (1_200_000_000, "1.2 GB")]
)
def test_sizes_are_short(count: int | None, text: str) -> None:
    assert words.size(count) == text


def test_the_time_since_a_checkpoint_is_never_negative_and_survives_nonsense() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

    assert words.seconds_since("2026-01-01T00:00:00+00:00", now) == 60
    assert words.seconds_since("2026-01-01T00:00:00", now) == 60
    assert words.seconds_since("2027-01-01T00:00:00+00:00", now) == 0
    assert words.seconds_since("yesterday", now) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0), ("7d", 604800.0), (None, None)],
)
def test_a_period_is_seconds_or_has_a_unit(text: str | None, seconds: float | None) -> None:
    assert words.parse_period(CONTEXT, PARAMETER, text) == seconds


def test_the_address_of_a_store_loses_its_password_and_is_opened_with_it() -> None:
    store = words.parse_store(CONTEXT, PARAMETER, "rediss://:geheim@store.test:6390/1?ssl_ca_certs=/ca.pem")

    assert store == "rediss://store.test:6390/1?ssl_ca_certs=%2Fca.pem"
    assert parse(store).with_credentials({}).secrets == {"password": "geheim"}


@pytest.mark.parametrize("store", [None, "checkpoints", "file:///srv/checkpoints"])
def test_a_folder_stays_as_it_is(store: str | None) -> None:
    assert words.parse_store(CONTEXT, PARAMETER, store) == store


def test_several_crashes_are_spelt_so() -> None:
    assert [words.counted(n, "crash") for n in (1, 2)] == ["1 crash", "2 crashes"]


# --- what file names alone tell the completion of a shell -------------------------------


def test_sessions_are_named_with_the_step_of_their_newest(tmp_path: Path) -> None:
    for name in (
        "session_a_b_step_10_1700000000-2.meta.json",
        "session_a_b_step_9_1700000000-1.meta.json",
        "session_c_step_1_1700000000-1.meta.json",
        "session_c_step_1_1700000000-1.pkl",
        "session_d_step_1_1700000000-1.pkl",
        "best.meta.json",
        ".c.lock",
    ):
        (tmp_path / name).touch()

    assert session_names(str(tmp_path)) == {"a_b": "step 10", "c": "step 1"}
    assert session_names(f"file://{tmp_path}") == session_names(str(tmp_path))


def test_checkpoints_are_what_has_a_meta(tmp_path: Path) -> None:
    (tmp_path / "best.meta.json").touch()
    (tmp_path / "alone.pkl").touch()

    assert checkpoint_paths(str(tmp_path)) == [str(tmp_path / "best.pkl")]


def test_a_folder_that_is_not_there_completes_nothing(tmp_path: Path) -> None:
    assert session_names(str(tmp_path / "none")) == {}
    assert checkpoint_paths(str(tmp_path / "none")) == []


def test_sessions_in_a_database_are_found_by_a_query_and_a_server_is_not_asked(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/runs.db")
    stocked.line(store, "night", 2)
    stocked.save(store, "alpha", 1, status="failed")

    assert session_names(f"sqlite:///{tmp_path}/runs.db") == {"alpha": "failed", "night": "running"}
    assert session_names(f"sqlite:///{tmp_path}/none.db") == {}
    assert session_names("redis://127.0.0.1:1/0") == {}


# --- how a command speaks ---------------------------------------------------------------


def test_on_a_pipe_a_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Manner().table(("name", "steps"), [("a", 7), ("longer", 1234), ("n", None)], right=("steps",))

    assert capsys.readouterr().out == "NAME    STEPS\na           7\nlonger   1234\nn\n"


NARROW = ("session", "status", "ready", "running", "delayed", "failed", "tokens", "age", "workflow", "reason")
ROW = (
    "square-seven-e4abe9aeaf7b", "completed", 0, 0, 0, 1, 0, "35 s", "square", "ValueError: it is no number"
)  # fmt: skip


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


def test_on_a_terminal_each_that_is_done_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    with Manner().counter("deleting", 4) as done:
        done("one")

    assert "deleting" in seen.getvalue()
    assert "1/4" in seen.getvalue()


@pytest.mark.parametrize("json", [True, False])
def test_nobody_who_reads_json_or_a_pipe_sees_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], json: bool
) -> None:
    seen = screen(monkeypatch) if json else None
    manner = Manner()
    manner.json = json

    with manner.bar("looking") as told:
        told(1, 2)

    assert (seen.getvalue() if seen else capsys.readouterr().err) == ""
