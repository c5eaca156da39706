"""A damaged journal: refused by name, and with until_damage used up to the damage."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, Workflow, task, workflow
from graflow_ckpt.core.errors import JournalDamaged
from graflow_ckpt.core.events import Event
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import graflow

PROGRAM = """
from graflow_ckpt import task, workflow

with workflow("w", "s", durability="journal", store="checkpoints") as flow:

    @task(inject_context=True)
    def turn(context):
        numbers = context.get_channel().get("numbers", default=[])
        numbers.append(context.cycle)
        if context.cycle == 5 and not open("flaw").read():
            raise KeyboardInterrupt
        if context.cycle < 7:
            context.next_iteration()
        return numbers

    print("result", flow.execute())
"""


@pytest.fixture(params=["checkpoints", "encrypted+file://{folder}/checkpoints"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return str(request.param.format(folder=Path.cwd()))


def counting(
    store: str,
    ran: list[int],
    fails_at: int = -1,
    *,
    until_damage: bool = False,
    seen: list[Event] | None = None,
) -> Workflow:
    """Eight rounds, each a commit in the journal."""
    with workflow(
        "w",
        "s",
        durability="journal",
        store=store,
        until_damage=until_damage,
        observers=[seen.append] if seen is not None else (),
    ) as flow:

        @task(inject_context=True)
        def turn(context) -> list[int]:
            numbers = context.get_channel().get("numbers", default=[])
            if context.cycle == fails_at:
                raise KeyboardInterrupt
            ran.append(context.cycle)
            numbers.append(context.cycle)
            if context.cycle < 7:
                context.next_iteration()
            return numbers

    return flow


def damage() -> None:
    """Spoil a record of the newest segment that has good ones before and after it."""
    newest = max(Path("checkpoints").glob(".s.*.journal"), key=lambda path: path.stat().st_mtime_ns)
    raw = bytearray(newest.read_bytes().rstrip(b"\0"))
    raw[-400] ^= 0xFF  # the first record is the largest: it has the random state
    newest.write_bytes(raw)


def interrupted(store: str, ran: list[int], at: int, *, until_damage: bool = False) -> None:
    with pytest.raises(KeyboardInterrupt):
        counting(store, ran, fails_at=at, until_damage=until_damage).execute()


def test_the_records_before_the_damage_count_and_the_rest_runs_again(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(store, [], 6)
    damage()
    with pytest.raises(JournalDamaged, match="damaged at byte") as refused:
        counting(store, []).execute()
    ran, seen = list[int](), list[Event]()

    with caplog.at_level(logging.WARNING):
        result = counting(store, ran, until_damage=True, seen=seen).execute()

    assert "--until-damage" in refused.value.hint
    assert result == [0, 1, 2, 3, 4, 5, 6, 7]
    assert 0 < ran[0] < 6
    assert ran == list(range(ran[0], 8))
    assert f"continues from step {ran[0]}: what was committed after it is lost" in caplog.text
    (told,) = [event for event in seen if event.kind == "journal_damaged"]
    assert told.facts["error_type"] == "JournalDamaged"


def test_after_that_the_session_resumes_without_it(store: str) -> None:
    interrupted(store, [], 5)
    damage()
    interrupted(store, [], 6, until_damage=True)
    ran = list[int]()

    assert counting(store, ran).execute() == [0, 1, 2, 3, 4, 5, 6, 7]

    assert ran == [6, 7]
    causes = {found.cause for found in CheckpointManager.list_checkpoints("s", store=store)}
    assert "until-damage" in causes


def test_a_journal_without_damage_is_used_to_its_end(store: str) -> None:
    interrupted(store, [], 6)
    ran = list[int]()

    assert counting(store, ran, until_damage=True).execute() == [0, 1, 2, 3, 4, 5, 6, 7]

    assert ran == [6, 7]


def test_the_command_says_what_is_lost() -> None:
    Path("count.py").write_text(PROGRAM)
    Path("flaw").write_text("")
    graflow("run", "count.py", status=130)
    Path("flaw").write_text("mended")
    damage()

    refused = graflow("resume", "s", status=1)
    done = graflow("resume", "s", "--until-damage", "--json")

    assert "resume s --until-damage" in refused.err
    assert "is lost and runs again" in done.err
    assert json.loads(done.out.splitlines()[-1])["code"] == 0
