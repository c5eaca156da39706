"""The door to the fleet: loaded when something is submitted, for it needs packages that are optional."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from graflow_ckpt.core.errors import GraflowError


# Any: a module of a layer beside this one, which is named here and imported nowhere.
def fleet() -> Any:
    """What a front end can ask of a fleet: fleet/door.py."""
    try:
        return import_module("graflow_ckpt.fleet.door")
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "rq"):
            raise
        raise GraflowError(
            f"Submitting to a fleet needs the package {error.name!r}.",
            hint="pip install 'graflow-ckpt[fleet]'",
        ) from error
