"""Code by name, with copies: what a copy may hold, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graflow_ckpt.checkpoint.code import COPY_LIMIT
from graflow_ckpt.checkpoint.pickles import load_live
from graflow_ckpt.core.errors import CheckpointError

PROGRAM = """
import logging, sys
from graflow_ckpt.checkpoint.pickles import live_bytes
logging.basicConfig(stream=sys.stderr)
data = bytes({size})
def count(): return len(data)
sys.stdout.buffer.write(live_bytes([count, count]))
"""


def made_by_a_program(size: int) -> tuple[bytes, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(size=size)], capture_output=True, check=True)
    return done.stdout, done.stderr.decode()


def test_a_copy_takes_the_small_data_that_its_code_uses() -> None:
    data, said = made_by_a_program(1000)

    assert [count() for count in load_live(data)] == [1000, 1000]
    assert said == ""


def test_large_data_that_code_uses_is_not_in_its_copy() -> None:
    data, said = made_by_a_program(COPY_LIMIT)

    assert len(data) < 1000
    assert said.count("count of __main__ uses more than 1 MiB of global data") == 1
    with pytest.raises(
        CheckpointError, match="__main__ has no 'count', and the checkpoint has only its name"
    ):
        load_live(data)
