"""The door to the fleet: loaded when something is submitted, for it needs packages that are optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from graflow_ckpt.core.errors import PackageMissing

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Fleet


def connect(url: str | None = None) -> Fleet:
    """Return the fleet of an address, or of GRAFLOW_CKPT_REDIS_URL: its sessions, and where to submit."""
    return cast("Fleet", fleet().connect(url))


# Any: a module of a layer beside this one, which is named here and imported nowhere.
def fleet() -> Any:
    """Return the module that front ends ask for a fleet: fleet/client.py."""
    with needed():
        return import_module("graflow_ckpt.fleet.client")


@contextmanager
def needed() -> Iterator[None]:
    """Name a missing package, and what to install, where the fleet is imported inside."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "rq"):
            raise
        raise PackageMissing(
            f"A fleet needs the package {error.name!r}, which is not installed.",
            hint="Install it with: pip install 'graflow-ckpt[fleet]'.",
            extra="fleet",
        ) from error
