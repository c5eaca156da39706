"""What is read back of owners: what was written, or one named error."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import count
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.links.processes import myself, named
from graflow_ckpt.stores.claims import lines_of, number, owner_in, parsed

ME = myself()
SAID = asdict(ME)


def test_an_owner_comes_back_and_so_do_lines() -> None:
    assert owner_in(json.dumps(SAID), "here") == owner_in(json.dumps(SAID).encode(), "here") == ME
    assert owner_in(None, "here") is owner_in(b"", "here") is None
    assert lines_of([[1, 2], [b"3", b"4"]], "here") == (Line(1, 2), Line(3, 4))


@pytest.mark.parametrize(
    "said",
    [
        b"{", b"\xff", b"[" * 100_000, b"[]", b"7", b'"x"', b"{}", json.dumps(SAID | {"pid": "../../x"}),
        json.dumps(SAID | {"pid": -1}), json.dumps(SAID | {"pid": 2**40}), json.dumps(SAID | {"pid": True}),
        json.dumps(SAID | {"host": 7}), json.dumps({k: v for k, v in SAID.items() if k != "boot"}),
    ],
    ids=count(),  # not what they say: processes that run tests side by side have to agree on names
)  # fmt: skip
def test_an_owner_that_nobody_can_have_written_is_refused(said: str | bytes) -> None:
    with pytest.raises(
        CheckpointCorrupt, match="owners of a session in here was not written by this package"
    ):
        owner_in(said, "here")


@pytest.mark.parametrize(
    "said", [7, None, [1], [[1]], [[1, 2, 3]], ["x"], [[1, -2]], [[1.5, 2]], [[True, 2]]]
)
def test_lines_that_nobody_can_have_written_are_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        lines_of(said, "here")


@pytest.mark.parametrize("said", [-1, 2**63, 1e999, "x", None, [], "9" * 5000])
def test_a_number_that_nothing_reaches_is_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        number(said, "here")


def test_json_may_hold_anything() -> None:
    assert parsed("[1]", "here") == [1]


def test_an_owner_is_named_without_what_a_terminal_would_obey() -> None:
    said = owner_in(json.dumps(SAID | {"host": "\x1b[2Jbox", "argv": "a\nb\u202e"}), "here")

    assert "on ?[2Jbox" in named(said)
    assert "a?b?" in named(said)
