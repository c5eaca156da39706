"""A writer that is killed 200 times while it overwrites never shows anybody half a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt.stores.local import LocalStore
from tests.crash.trio_reader import parts

pytestmark = pytest.mark.crash

DEATHS = 250


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.victims", *arguments], stdout=subprocess.PIPE, text=True
    )


def test_no_load_beside_a_dying_writer_is_bad(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    LocalStore(folder).put(f"{folder}/best.pkl", parts("t0", 20_000), lease=None, stage="t0")
    readers = [start("reader", str(folder)) for _ in range(2)]

    told, _ = start("storm", str(folder), str(DEATHS), "7").communicate(timeout=100)
    (folder / "stop").touch()
    read = [json.loads(reader.communicate(timeout=30)[0]) for reader in readers]

    storm = json.loads(told)
    print(
        f"\n{storm['deaths']} deaths in {storm['writes']} writes, {storm['leftovers']} left staged files;",
        read,
    )
    assert storm["deaths"] == DEATHS
    assert storm["bad"] == []
    assert all(reader["bad"] == [] and reader["loads"] > 100 for reader in read)
