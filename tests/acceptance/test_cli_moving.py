"""graflow-ckpt checkpoints copy, export and import: between stores, machines and keys."""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import KILLED, Terminal, graflow, inside, run_count, steps

DATABASE = "sqlite:///other.db"


def test_a_session_is_copied_and_goes_on_at_its_new_place(killed: list[str]) -> None:
    done = inside("checkpoints", "copy", "--to", DATABASE, "--json").document

    assert [cut["state"] for cut in done["checkpoints"]] == ["copied"] * len(killed)
    assert [(one["session"], one["copied"]) for one in done["sessions"]] == [("s", len(killed))]
    again = inside("checkpoints", "copy", "s", "--to", DATABASE)
    assert again.out.splitlines()[1].split()[:3] == ["s", "0", str(len(killed))]
    graflow("resume", "s", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]
    assert graflow("sessions", "--store", DATABASE, "--json").document[0]["status"] == "completed"


def test_who_has_gone_on_there_is_named_and_the_exit_status_says_so(killed: list[str]) -> None:
    inside("checkpoints", "copy", "--to", DATABASE)
    graflow("resume", "s", "--store", DATABASE)
    graflow("resume", "s")

    told = inside("checkpoints", "copy", "--to", DATABASE, status=1)

    assert "session s was not copied: Session s has gone on by itself at sqlite:///" in told.err
    (failed,) = inside("checkpoints", "copy", "--to", DATABASE, "--json", status=1).document["failed"]
    assert failed["error"] == "Diverged"


def test_a_single_checkpoint_and_a_workflow_are_copied_alone(counted: list[str]) -> None:
    one = inside("checkpoints", "copy", counted[0], "--to", DATABASE, "--json").document
    none = inside("checkpoints", "copy", "--workflow", "other", "--to", DATABASE, "--json", status=1).document

    assert [(cut["path"], cut["state"]) for cut in one["checkpoints"]] == [(counted[0], "copied")]
    assert none["error"] == "NoSession"
    inside("checkpoints", "verify", one["checkpoints"][0]["target"])


def test_what_is_not_there_or_the_same_place_is_an_error(counted: list[str]) -> None:
    assert (
        "neither a session nor a checkpoint"
        in inside("checkpoints", "copy", "night", "--to", DATABASE, status=1).err
    )
    inside("checkpoints", "copy", "--to", DATABASE)
    (path, *_) = inside("checkpoints", "list", "--store", DATABASE, "--json").document
    assert "--from sqlite:///" in inside("checkpoints", "copy", path["path"], "--to", "x", status=2).err
    assert "the same place" in inside("checkpoints", "copy", "--to", "checkpoints", status=2).err
    assert (
        "--workflow is for all"
        in inside("checkpoints", "copy", "s", "--workflow", "w", "--to", DATABASE, status=2).err
    )


def test_what_was_sealed_with_the_local_key_is_copied_to_a_place_with_a_named_one(counted: list[str]) -> None:
    key = new_key()

    done = inside("checkpoints", "copy", "--to", DATABASE, "--json", GRAFLOW_CKPT_KEY=key).document

    assert {cut["state"] for cut in done["checkpoints"]} == {"copied"}
    inside("checkpoints", "verify", "--all", "--store", DATABASE, GRAFLOW_CKPT_KEY=key)
    inside("checkpoints", "verify", "--all", "--store", DATABASE, status=1)


def test_a_session_travels_in_a_file(killed: list[str]) -> None:
    told = inside("checkpoints", "export", "s", "s.ckpt")
    done = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, "--json").document

    assert f"{len(killed)} checkpoints copied" in told.err
    assert list(Path().glob("s.ckpt-*")) == []  # nothing lies beside it that would have to be carried, too
    assert {cut["state"] for cut in done["checkpoints"]} == {"copied"}
    graflow("resume", "s", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_a_journal_travels_in_a_file(tmp_path: Path) -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    inside("checkpoints", "export", "s", "s.ckpt")
    (done,) = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, "--json").document["sessions"]

    assert done["records"] > 0
    graflow("run", "count.py", "--session", "s", "--durability", "journal", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_single_checkpoints_and_all_of_a_store_are_exported(counted: list[str]) -> None:
    one = inside("checkpoints", "export", counted[0], "one.ckpt", "--json").document
    everything = inside("checkpoints", "export", "--all", "all.ckpt", "--json").document

    assert [cut["state"] for cut in one["checkpoints"]] == ["copied"]
    assert [(one["session"], one["copied"]) for one in everything["sessions"]] == [("s", len(counted))]
    done = inside("checkpoints", "import", "one.ckpt", "--store", "new", "--json").document
    assert [cut["state"] for cut in done["checkpoints"]] == ["copied"]
    assert f"{len(counted) - 1} checkpoints copied" in inside("checkpoints", "export", "s", "one.ckpt").err
    assert "give --all" in inside("checkpoints", "export", "x.ckpt", status=2).err


def test_a_file_of_another_machine_needs_its_key_or_trust(counted: list[str]) -> None:
    inside("checkpoints", "export", "s", "s.ckpt")
    elsewhere = {"XDG_STATE_HOME": str(Path("elsewhere").absolute())}

    refused = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, status=1, **elsewhere)
    asked = graflow("checkpoints", "import", "s.ckpt", "--trust", "--store", DATABASE, status=2, **elsewhere)
    inside("checkpoints", "import", "s.ckpt", "--trust", "--yes", "--store", DATABASE, **elsewhere)

    assert "sealed with key" in refused.err
    assert "session s: " in asked.err
    assert "runs the code in them" in asked.err
    inside("checkpoints", "verify", "--all", "--store", DATABASE, **elsewhere)


def test_what_is_no_file_of_checkpoints_is_refused() -> None:
    Path("x.ckpt").write_bytes(b"something else")

    told = inside("checkpoints", "import", "x.ckpt", "--json", status=1).document

    assert told["error"] == "CheckpointCorrupt"
    assert inside("checkpoints", "import", "none.ckpt", "--json", status=1).document["errno"] == 2


def test_somebody_at_a_terminal_sees_how_far_it_is(counted: list[str]) -> None:
    terminal = Terminal("checkpoints", "copy", "--to", DATABASE)

    terminal.read_until(r"checkpoints? copied")

    assert terminal.end() == 0


def test_what_is_not_encrypted_any_more_is_told(counted: list[str]) -> None:
    key = new_key()
    secret = "encrypted+sqlite:///secret.db"

    veiled = inside("checkpoints", "copy", "--to", secret, GRAFLOW_CKPT_KEY=key)
    clear = inside("checkpoints", "copy", "--from", secret, "--to", "clear", GRAFLOW_CKPT_KEY=key)
    file = inside("checkpoints", "export", "s", "s.ckpt", "--store", secret, GRAFLOW_CKPT_KEY=key)

    assert "in the clear" not in veiled.err
    assert "is in the clear in file://" in clear.err
    assert f"is in the clear in sqlite:///{Path.cwd()}/s.ckpt" in file.err
    inside("checkpoints", "verify", "--all", "--store", "clear", GRAFLOW_CKPT_KEY=key)
