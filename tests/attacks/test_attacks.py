"""A share of the attacks for every run; all of them by `make attacks`. And: the corpus itself can convict."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive, history, journal, seals
from graflow_ckpt.checkpoint.seals import Chain
from tests.attacks import canary, run
from tests.attacks.attempts import ATTACKS
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import PLACES

SHARE = {"memory": 1000, "local": 150, "sqlite": 150, "redis": 150}
SEED = 20


@pytest.mark.parametrize("place", SHARE)
def test_every_attack_is_refused_by_name_or_has_changed_nothing(place: str) -> None:
    tally = run.run(SHARE[place], SEED, (place,))

    assert tally.breaches == []
    assert tally.total == SHARE[place]


def test_every_kind_of_attack_is_one_that_is_refused() -> None:
    tallies = [run.run(len(ATTACKS) * 8, SEED + 1, (place,)) for place in ("local", "memory", "sqlite")]

    assert len(ATTACKS) >= 12
    refused = {what for tally in tallies for what, _ in tally.refused}
    assert refused | {"a key that the store has not made"} == set(ATTACKS)  # that one is left alone
    assert [tally.breaches for tally in tallies] == [[], [], []]


@pytest.mark.parametrize("name", GADGETS)
def test_the_canary_sings_if_a_gadget_is_opened(name: str) -> None:
    with suppress(Exception):  # some have no end
        pickle.loads(GADGETS[name])

    heard = list(canary.HEARD)
    canary.HEARD.clear()
    assert heard


def breaches(what: str, count: int = 60) -> int:
    """How often one kind of attack gets through."""
    tally = run.Tally()
    with PLACES["memory"](Path()) as scene:
        for number in range(count):
            run.one(scene, "memory", SEED, list(ATTACKS).index(what) + number * len(ATTACKS), tally)
    return len(tally.breaches)


ORDER_OF = history.order_of
FAULTS: dict[str, tuple[object, str, object, list[str]]] = {  # what is broken, and who gets through then
    "an archive that believes every seal": (
        archive, "verify", lambda meta, keyring: None,
        ["the seal is forged", "a gadget in the place of the values"],
    ),
    "an archive that skips digests": (
        archive, "VerifyingSource", lambda source, digest: source,
        ["a gadget in the place of the values", "a part of another checkpoint of the session"],
    ),
    "a journal that is not chained": (
        Chain, "check", lambda chain, payload, mac: True, ["a gadget in a record"],
    ),
    "a chain that begins anywhere": (
        journal, "start", lambda session, epoch, after: b"",
        ["records of another line of epochs, or of another place"],
    ),
    "cells that are opened without a seal": (
        seals, "compare_digest", lambda one, other: True,
        ["a cell with a gadget in it", "a cell of another session"],
    ),
    "a session that overlooks what lies in its place": (
        history, "order_of", lambda raw, session=None: ORDER_OF(raw),
        ["the newest checkpoints of a session are another session's"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_has_one_fault_is_convicted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, instead, attacks = FAULTS[fault]
    monkeypatch.setattr(module, name, instead)

    assert all(breaches(what) for what in attacks)


_LITTLE = """
import resource, sys
from pathlib import Path
from tests.attacks import run
from tests.attacks.scene import PLACES
with PLACES["memory"](Path()) as scene:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
    tally = run.Tally()
    kinds = [n for n, what in enumerate(run.ATTACKS) if what in sys.argv[1:]]
    for number in range(25):
        for kind in kinds:
            run.one(scene, "memory", 5, kind + number * len(run.ATTACKS), tally)
    print(tally.total, len(tally.breaches), tally.breaches[:3])
"""


def test_bombs_do_no_harm_where_memory_is_scarce() -> None:
    kinds = [
        "sizes that nobody has memory for",
        "brackets in brackets",
        "a plain value that declares more than there is",
        "a journal that takes for ever to look through",
        "a list in which one is bad",
    ]

    done = subprocess.run(
        [sys.executable, "-c", _LITTLE, *kinds], capture_output=True, text=True, timeout=100
    )

    assert done.returncode == 0, done.stderr  # a stack that ends takes the process with it
    assert done.stdout.split()[:2] == ["125", "0"], done.stdout
