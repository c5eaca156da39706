"""workers/Dockerfile and the systemd units taken apart: stages with instructions, sections with settings.

As far as our own Dockerfile goes: line continuations and comments, no heredocs and no other escape character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "workers" / "Dockerfile"


@dataclass(frozen=True)
class Instruction:
    name: str
    flags: dict[str, str]
    text: str

    @property
    def exec_form(self) -> Any:
        """The list that it is; an error if a shell would run it."""
        return json.loads(self.text.removeprefix("CMD ") if self.name == "HEALTHCHECK" else self.text)


@dataclass(frozen=True)
class Stage:
    image: str
    name: str
    instructions: list[Instruction]

    def all(self, name: str) -> list[Instruction]:
        return [each for each in self.instructions if each.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]


def instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            flags = {}
            while flag := re.match(r"--([a-z-]+)(?:=(\S*))?\s+", rest):
                flags[flag[1]] = flag[2] or ""
                rest = rest[flag.end() :]
            yield Instruction(name.upper(), flags, rest.strip())


def stages() -> list[Stage]:
    found: list[Stage] = []
    for each in instructions(DOCKERFILE.read_text(encoding="utf-8")):
        if each.name == "FROM":
            image, _, name = each.text.partition(" AS ")
            found.append(Stage(image, name, []))
        else:
            found[-1].instructions.append(each)
    return found


def copied() -> list[str]:
    """What is taken from the build context."""
    return [
        source
        for stage in stages()
        for each in stage.instructions
        if each.name in {"COPY", "ADD"} and "from" not in each.flags
        for source in each.text.split()[:-1]
    ]


# --- workers/*.service ------------------------------------------------------------------


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
