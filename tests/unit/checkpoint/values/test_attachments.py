"""Files by reference: they stay where they are, and a session does not go on with others."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.core.errors import AttachmentChanged, CheckpointError
from tests.loops import chain

CHUNK = 4 << 20


def looking(folder: Path, *, fail: bool, **options: str) -> list[str]:
    """Two tasks, the second of which may fail; what ran."""
    ran: list[str] = []

    def first(context):  # type: ignore[no-untyped-def]
        ran.append("first")
        attached = context.attach(folder / "data.bin")
        context.checkpoint()
        with attached.open() as file:
            return len(file.read())

    def second(first):  # type: ignore[no-untyped-def]
        ran.append("second")
        if fail:
            raise RuntimeError("not yet")
        return first

    chain(first, second, workflow="look", session_id="look", store=f"{folder}/runs", **options).execute()
    return ran


def begun(folder: Path, size: int = 1000) -> Path:
    file = folder / "data.bin"
    file.write_bytes(np.random.default_rng(1).bytes(size))
    with pytest.raises(RuntimeError, match="not yet"):
        looking(folder, fail=True)
    return file


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_session_goes_on_with_the_file_that_it_had(tmp_path: Path, size: int) -> None:
    begun(tmp_path, size)

    assert looking(tmp_path, fail=False) == ["second"]
    taken = sum(path.stat().st_size for path in (tmp_path / "runs").iterdir() if path.is_file())
    assert taken < 100_000


def test_a_file_that_has_changed_by_one_byte_is_refused_and_named(tmp_path: Path) -> None:
    file = begun(tmp_path, 2 * CHUNK)
    with file.open("r+b") as changed:
        changed.seek(CHUNK + 7)
        byte = changed.read(1)
        changed.seek(CHUNK + 7)
        changed.write(bytes([byte[0] ^ 1]))

    with pytest.raises(AttachmentChanged, match=r"data\.bin has other bytes"):
        looking(tmp_path, fail=False)


def test_a_file_that_is_shorter_or_gone_is_refused_and_put_back_it_goes_on(tmp_path: Path) -> None:
    file = begun(tmp_path)
    was = file.read_bytes()

    file.write_bytes(was[:10])
    with pytest.raises(AttachmentChanged, match="has 10 bytes, and had 1000"):
        looking(tmp_path, fail=False)
    file.unlink()
    with pytest.raises(AttachmentChanged, match="cannot be read"):
        looking(tmp_path, fail=False)
    file.write_bytes(was)
    assert looking(tmp_path, fail=False) == ["second"]


def test_going_back_to_a_checkpoint_by_path_looks_at_its_files_too(tmp_path: Path) -> None:
    file = begun(tmp_path)
    path = CheckpointManager.get_latest("look", store=f"{tmp_path}/runs")
    file.write_bytes(b"other")
    context, _ = CheckpointManager.resume_from_checkpoint(path)

    from graflow_ckpt import WorkflowEngine

    with pytest.raises(AttachmentChanged):
        WorkflowEngine().execute(context)


def test_with_reuse_it_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = begun(tmp_path)
    file.write_bytes(b"other")

    with caplog.at_level(logging.WARNING):
        assert looking(tmp_path, fail=False, changed="reuse") == ["second"]

    assert "goes on although" in caplog.text


def test_what_cannot_be_read_is_refused_where_it_is_attached(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be attached"):
        looking(tmp_path, fail=False)
