"""graflow-ckpt trust and key: checkpoints from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.command_line import COUNT, KILLED, Terminal, checkpoints, graflow, program

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


@pytest.fixture
def foreign() -> list[str]:
    """Checkpoints that another machine has sealed."""
    program("count.py", COUNT)
    key = graflow("key", "new").out.strip()
    command = ("run", "count.py", "--session", "s", "--every", "2", "--", "4")
    graflow(*command, status=KILLED, GRAFLOW_CKPT_KEY=key)
    return checkpoints("s")


def test_a_foreign_checkpoint_is_refused_with_both_ways_on(foreign: list[str]) -> None:
    refused = graflow("resume", foreign[-1], status=1).err

    assert "GRAFLOW_CKPT_KEY" in refused
    assert "graflow-ckpt trust" in refused
    assert "Traceback" not in refused


def test_a_trusted_checkpoint_is_one_s_own(foreign: list[str]) -> None:
    done = graflow("trust", foreign[-1], "--yes")

    assert "host" in done.err
    assert "count.py" in done.err
    assert [row["verdict"] for row in graflow("checkpoints", "verify", "s", "--json", status=1).document] == [
        "bad", "good",
    ]  # fmt: skip
    assert "continues from step 4" in graflow("resume", "s").err


def test_somebody_is_asked_first(foreign: list[str]) -> None:
    before = Path(foreign[-1].replace(".pkl", ".meta.json")).read_bytes()

    assert "Nothing was done." in graflow("trust", foreign[-1], stdin="n\n", status=130).err
    assert Path(foreign[-1].replace(".pkl", ".meta.json")).read_bytes() == before

    terminal = Terminal("trust", foreign[-1])
    terminal.read_until(r"Seal it with the key of this machine\? \[y/N\]")
    terminal.type("y\n")
    assert terminal.end() == 0
    graflow("checkpoints", "verify", foreign[-1])


@pytest.mark.parametrize("part", ["pkl", "state.json"])
def test_files_that_are_not_those_of_the_meta_are_never_sealed(foreign: list[str], part: str) -> None:
    path = Path(foreign[-1].replace(".pkl", f".{part}"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    assert "corrupted" in graflow("trust", foreign[-1], "--yes", status=1).err
    graflow("checkpoints", "verify", foreign[-1], status=1)


def test_one_s_own_checkpoint_needs_no_trust() -> None:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s")

    assert "nothing to do" in graflow("trust", checkpoints("s")[0]).err


def test_a_key_can_be_carried_over(foreign: list[str]) -> None:
    key = graflow("key", "new", "--json").document
    assert key["key"].startswith(f"{key['id']}:")

    Path("key").write_text(key["key"])
    Path("key").chmod(0o600)
    graflow("trust", foreign[-1], "--yes", GRAFLOW_CKPT_KEY_FILE="key")

    graflow("checkpoints", "verify", foreign[-1], GRAFLOW_CKPT_KEY=key["key"])
    graflow("checkpoints", "verify", foreign[-1], status=1)
