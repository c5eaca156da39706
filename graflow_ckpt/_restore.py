"""The one name that pickles of this package refer to, so that modules can move.

`pickle.load` of a `.pkl` file calls `context(payload)` and so gives an ExecutionContext.
"""

from __future__ import annotations

from typing import Any


def context(payload: dict[str, Any]) -> Any:
    """The ExecutionContext of a checkpoint's payload."""
    from graflow_ckpt.engine.context import ExecutionContext  # noqa: PLC0415  loaded when a pickle is opened

    return ExecutionContext.from_payload(payload)
