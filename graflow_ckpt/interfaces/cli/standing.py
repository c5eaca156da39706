"""How a session stands: the control facts of a cut and of the journal after it, without a value.

No pickle is opened: values and task data are placeholders. Good for plans and for questions of
how far a session is; nothing can be run with it.
"""

from __future__ import annotations

from typing import Any

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState

_PLACEHOLDER = ("plain", b"\xc0")


def standing(
    store: CheckpointStore, found: Found, *, journal: bool, until_damage: bool = False
) -> tuple[SessionState, int]:
    """The state at a cut, and with `journal` what the records after it make of it; how many."""
    state = restore(found.facts, _no_values(found.facts))
    if not journal:
        return state, 0
    session = found.meta["session_id"]
    at_damage = (lambda error: None) if until_damage else None  # the run itself reports it
    keys = Keyring.for_store(store)
    return state, history.replay(store, keys, state, found, session, closed=True, at_damage=at_damage)


def _no_values(facts: Document) -> dict[str, Any]:
    """A payload in which nothing has a value."""
    references = [spec["task_data"]["ref"] for spec in facts["pending_tasks"] if spec["task_data"]]
    return {
        "plain": {},
        "live": {},
        "appended": {},
        "data": [_PLACEHOLDER] * (max(references, default=-1) + 1),
        "tasks": dict.fromkeys(facts["made"], _PLACEHOLDER),
        "rng": None,
    }
