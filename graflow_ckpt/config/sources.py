"""Sources of settings: flags win over the environment, the environment over a file, a file over defaults.

    graflow-ckpt.toml      in the working folder or one above it, or where --config or
    [fleet]                GRAFLOW_CKPT_CONFIG says; keys are the variables' names in small letters
    queues = ["gpu"]       and without GRAFLOW_CKPT_

Says of every value where it comes from. A file that the user has not named and that another user could
have put there is refused: it says whose code is run. Not here: what the values may be (settings.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.environment import NAMES, PREFIX, variable

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
FILE_NAME = "graflow-ckpt.toml"
SECTION = "fleet"

FLAGS = {"redis_url": "--url"} | {
    name: f"--{name.replace('_', '-')}" for name in NAMES if name not in ("redis_url", "key", "key_file")
}


class BadSetting(GraflowError, ValueError):
    """A setting that is not valid: fix it where `.where` says, and start again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value."""

    kind: str  # flag, environment, file or default
    where: str = ""  # the flag, the variable, or the path of the file

    def of(self, name: str) -> str:
        """Return the name that errors use."""
        return f"{name} in [{SECTION}] of {self.where}" if self.kind == "file" else self.where or name


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Given:
    """The values that some source sets, and the source of each; a value that none sets is not in it."""

    values: dict[str, Any] = field(default_factory=dict, repr=False)  # Any: not validated yet
    origins: dict[str, Origin] = field(default_factory=dict)
    file: str | None = None  # that was read


def gather(
    flags: Mapping[str, Any] | None = None,
    config: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Given:
    """Return all sources together. An empty variable counts as none."""
    path = find(config, environment)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}

    def take(found: Mapping[str, Any], origin: Mapping[str, Origin]) -> None:
        if {"key", "key_file"} & found.keys():  # one setting in two forms
            for name in ("key", "key_file"):
                values.pop(name, None)
                origins.pop(name, None)
        values.update(found)
        origins.update(origin)

    if path is not None:
        table = read(path, named=bool(config or environment.get(CONFIG_VARIABLE)))
        if isinstance(
            table.get("key_file"), str
        ):  # beside the file that speaks of it, not wherever one works
            table["key_file"] = str(path.parent / table["key_file"])
        take(table, dict.fromkeys(table, Origin("file", str(path))))
    said = {name: text for name in NAMES if (text := environment.get(variable(name), "").strip())}
    take(said, {name: Origin("environment", variable(name)) for name in said})
    typed = {name: value for name, value in (flags or {}).items() if value is not None}
    take(typed, {name: Origin("flag", FLAGS[name]) for name in typed})
    return Given(values, origins, None if path is None else str(path))


# --- the file --------------------------------------------------------------------------


def find(config: str | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that is named, else the nearest one from the working folder up."""
    if named := config or environment.get(CONFIG_VARIABLE, "").strip():
        return Path(named)
    folder = Path.cwd()
    for place in (folder, *folder.parents):
        if (path := place / FILE_NAME).is_file():
            return path
    return None


def read(path: Path, *, named: bool) -> dict[str, Any]:
    """Return its section [fleet]; refuse any other section, and any key that is none of ours."""
    import tomllib

    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            document = tomllib.load(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadSetting(f"The settings in {path} cannot be read: {why}.", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(
            f"{path} is not TOML: {error}.", hint='Lines are written: name = "value".', where=str(path)
        ) from error
    table = document.pop(SECTION, {})
    if document or not isinstance(table, dict):
        name = next(iter(document), SECTION)
        raise BadSetting(
            f"{path} has {name!r}, which is not a section of it.",
            hint=f"Settings stand below a line [{SECTION}].",
            where=str(path),
        )
    _check_names(path, table)
    _check_owner(path, found, named=named, secret="key" in table)
    return table


def _check_names(path: Path, table: Mapping[str, Any]) -> None:
    strange = [name for name in table if name not in NAMES]
    if strange:
        raise BadSetting(
            f"{path} has {strange[0]!r} in [{SECTION}], which is not a setting.",
            hint=f"{_meant(strange[0])}There are: {', '.join(NAMES)}.",
            where=str(path),
            names=strange,
        )


def _meant(name: str) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name.lower().replace("-", "_").removeprefix("graflow_ckpt_"), NAMES, 1)
    return f"Is {found[0]} meant? " if found else ""


def _check_owner(path: Path, found: os.stat_result, *, named: bool, secret: bool) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH:
        why = "every user can change it"
    elif not named and found.st_uid not in (os.geteuid(), 0):
        why = f"it belongs to user {found.st_uid}"
    elif not named and secret and mode & 0o077:
        why = "it has a key in it, and others can read it"
    else:
        return
    raise BadSetting(
        f"The settings in {path} are not used: {why}.",
        hint=f"chmod go= {path}, or, if it is meant, name it: {CONFIG_VARIABLE} or --config."
        if not mode & stat.S_IWOTH
        else f"chmod o-w {path}.",
        where=str(path),
    )
