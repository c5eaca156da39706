"""Holdings: the values of a checkpoint by name, without running any code.

Plain values are decoded; live ones are stand-ins (inert.py) that can be weighed, compared and, where they are
numbers, looked at. A result goes by the name of its task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from graflow_ckpt.checkpoint import archive, inert
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.codec import decode, encode
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.core.protocols import Readable


@dataclass(frozen=True, slots=True)
class Held:
    """One value. Equal digests: nothing has changed."""

    plain: bool
    kind: str
    size: int
    digest: str
    value: Any = field(compare=False)  # whatever it is; of a live one the stand-in

    def seen(self) -> Any:
        """What can be seen of it: attributes as dicts, arrays as lists."""
        return self.value if self.plain else inert.plainer(self.value)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one checkpoint holds."""

    found: Found
    values: dict[str, Held]
    results: dict[str, Held]  # by task


def holdings(store: Readable, keyring: Keyring, path: str) -> Holdings:
    """Verify a checkpoint and read its values: each chunk before anything of it is parsed."""
    found = archive.find(store, keyring, path)
    payload = archive.open_values(store, found, inert.load)
    try:
        values: dict[str, Held] = {name: _plain(cell) for name, cell in payload["plain"].items()}
        values |= {name: _live(value) for name, value in payload["live"].items()}
        for name, items in payload["appended"].items():
            values[name] = _appended(values.get(name), items)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorrupt(
            f"The values of {path} do not hold together: {error!r}.", path=path
        ) from error
    results = {name.removesuffix(RESULT): held for name, held in values.items() if name.endswith(RESULT)}
    return Holdings(
        found, {name: held for name, held in sorted(values.items()) if not name.endswith(RESULT)}, results
    )


def _plain(cell: bytes) -> Held:
    value = decode(cell)
    return Held(True, type(value).__name__, len(cell), blake3(cell).hexdigest(16), value)


def _live(value: Any) -> Held:
    size, digest = inert.weigh(value)
    return Held(False, inert.kind_of(value), size, digest, value)


def _appended(base: Held | None, items: list[tuple[str, Any]]) -> Held:
    """A list and what was appended to it since it was written as a whole."""
    values = [decode(item) if tag == "plain" else item for tag, item in items]
    if base is not None:
        values = [*(base.value.items if isinstance(base.value, inert.Inert) else base.value), *values]
    plain = all(tag == "plain" for tag, _ in items) and (base is None or base.plain)
    return _plain(encode(values)) if plain else _live(values)
