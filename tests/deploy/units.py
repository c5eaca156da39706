"""The systemd units of workers/ taken apart: sections, and in each its settings in order."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
ONE = ROOT / "workers" / "graflow-ckpt-worker.service"
SEVERAL = ROOT / "workers" / "graflow-ckpt-worker@.service"
EXAMPLE = ROOT / "workers" / "worker.env.example"


def settings(unit: Path) -> list[tuple[str, str, str]]:
    """(section, name, value); a name may come several times."""
    found = []
    section = ""
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            assert not value.endswith("\\"), "not for these eyes"
            found.append((section, name, value))
    return found


def service(unit: Path) -> dict[str, str]:
    """The settings of [Service] that come once."""
    return {name: value for section, name, value in settings(unit) if section == "Service"}


def environment(text: str, *, comments: bool = False) -> dict[str, str]:
    """An environment file; with its commented lines if asked for."""
    lines = [line.lstrip("#") if comments else line for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line[:1].isupper() and "=" in line and " " not in line]
    return {name: value.strip('"') for name, _, value in pairs}
