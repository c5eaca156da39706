"""What an examination finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from graflow_ckpt.interfaces.cli.manner import Document


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: str  # ok, warning, bad
    found: str

    def document(self) -> Document:
        return asdict(self)
