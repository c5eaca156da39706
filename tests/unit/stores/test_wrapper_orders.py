"""In which order wrappers may stand, and that those which may work together do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, TaskExecutionContext, task, workflow
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import open_store, open_store_of
from graflow_ckpt.stores.keys import new_key
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.testing.trios import listed, named, own_name, owning, put_own, read

SECRET = b"values of n1"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    monkeypatch.setenv("GRAFLOW_CKPT_FALLBACK", str(tmp_path / "folder"))
    monkeypatch.setenv("GRAFLOW_CKPT_CACHE_URL", redis_url)
    yield
    MemoryStore("memory://orders").forget()


@pytest.mark.parametrize("word", ["fallback", "cached"])
@pytest.mark.parametrize("between", ["", "retry+", "compressed+"])
def test_what_keeps_bytes_of_its_own_stands_within_the_encryption(word: str, between: str) -> None:
    with pytest.raises(CheckpointError, match="in clear") as refused:
        open_store(f"{word}+{between}encrypted+memory://orders")

    assert f"encrypted+{word}+" in refused.value.hint


@pytest.mark.parametrize(
    "words",
    [
        "encrypted+fallback+",
        "encrypted+cached+retry+",
        "compressed+encrypted+cached+retry.5+",
        "fallback+tenant.acme+cached+",
        "compressed+encrypted+tenant.acme+fallback+cached+retry+",
    ],
)
def test_wrappers_work_together(words: str) -> None:
    store = open_store(f"{words}memory://orders")
    with owning(store) as lease:
        path = put_own(store, lease, 1)

    assert path.startswith(words)
    for _ in range(2):
        assert SECRET in read(open_store_of(path), path).values
    assert listed(store) == [named(own_name())]
    assert store.delete(path) is True
    assert listed(store) == []


@pytest.mark.parametrize("words", ["retry+", "fallback+", "cached+", "retry+fallback+cached+"])
def test_what_was_saved_without_them_can_be_read_through_them(words: str, tmp_path: Path) -> None:
    """Also large values, which SQLite keeps once for all checkpoints."""
    store = f"sqlite:///{tmp_path}/runs.db"
    with workflow("large", "s", store=store) as flow:

        @task(inject_context=True)
        def load(context: TaskExecutionContext) -> None:
            context.get_channel().set("rows", b"row" * 100_000)
            context.checkpoint()

        flow.execute()
    path = CheckpointManager.get_latest("s", store=store)

    context, _ = CheckpointManager.resume_from_checkpoint(f"{words}{path}")

    assert context.get_channel().get("rows") == b"row" * 100_000
    assert CheckpointManager.verify(f"{words}{path}").session_id == "s"
