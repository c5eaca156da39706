"""The door to the fleet: loaded when something is submitted, for it needs packages that are optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from graflow_ckpt.core.errors import PackageMissing

if TYPE_CHECKING:
    from graflow_ckpt.fleet.door import Fleet


def connect(url: str | None = None) -> Fleet:
    """The fleet of an address, or of GRAFLOW_CKPT_REDIS_URL: its sessions, and somewhere to submit to."""
    return cast("Fleet", fleet().connect(url))


# Any: a module of a layer beside this one, which is named here and imported nowhere.
def fleet() -> Any:
    """What a front end can ask of a fleet: fleet/door.py."""
    with needed():
        return import_module("graflow_ckpt.fleet.door")


@contextmanager
def needed() -> Iterator[None]:
    """Around what imports the fleet: a missing package is named together with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "rq", "pydantic"):
            raise
        raise PackageMissing(
            f"A fleet needs the package {error.name!r}, which is not installed.",
            hint="Install it with: pip install 'graflow-ckpt[fleet]'.",
            extra="fleet",
        ) from error
