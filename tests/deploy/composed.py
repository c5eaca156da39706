"""docker-compose.yml as compose reads it: YAML 1.2, with variables put in by compose's rules.

Not here: what compose does with it; there may be no engine. Where `docker compose` is installed its `config`
is the judge, elsewhere the published schema, which the package check-jsonschema carries with it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.servers import Server

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
GIVEN = {"GRAFLOW_CKPT_KEY": f"id:{'0' * 64}", "GRAFLOW_CKPT_REDIS_PASSWORD": "5ecret"}

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPERATOR = re.compile(r":[-?+]|[-?+]")


class Required(Exception):
    """`${NAME:?message}` and NAME is not there."""


def document(env: Mapping[str, str] | None = None, text: str | None = None) -> Any:
    """The file with the variables of `env` in it; None: as it is written."""
    raw = YAML(typ="safe", pure=True).load(FILE.read_text(encoding="utf-8") if text is None else text)
    return raw if env is None else _each(raw, lambda value: interpolate(value, env))


def variables() -> set[str]:
    """The names that the file takes from its environment."""
    named: set[str] = set()
    for value in strings(document()):
        named.update(re.findall(r"(?<!\$)\$\{?([A-Za-z_][A-Za-z0-9_]*)", value))
    return named


def strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)


def _each(node: Any, change: Callable[[str], str]) -> Any:
    match node:
        case str():
            return change(node)
        case dict():
            return {key: _each(value, change) for key, value in node.items()}
        case list():
            return [_each(value, change) for value in node]
        case _:
            return node


# --- variables -------------------------------------------------------------------------


def interpolate(text: str, env: Mapping[str, str]) -> str:
    done = ""
    while text:
        before, dollar, text = text.partition("$")
        done += before
        if text.startswith("$"):
            done, text = done + "$", text[1:]
        elif text.startswith("{"):
            inner, text = _braced(text)
            done += _value(inner, env)
        elif name := NAME.match(text):
            done, text = done + env.get(name[0], ""), text[name.end() :]
        else:
            done += dollar
    return done


def _braced(text: str) -> tuple[str, str]:
    """What is between a brace and the one that closes it, and what follows."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:at], text[at + 1 :]
    raise ValueError(f"no closing brace: {text}")


def _value(inner: str, env: Mapping[str, str]) -> str:
    name = NAME.match(inner)
    operator = OPERATOR.match(inner, name.end()) if name else None
    if name is None or (operator is None and name.end() != len(inner)):
        raise ValueError(f"not of compose's form: ${{{inner}}}")
    value = env.get(name[0])
    if operator is None:
        return value or ""
    there = bool(value) if operator[0].startswith(":") else value is not None
    word = inner[operator.end() :]
    match operator[0][-1]:
        case "-":
            return (value or "") if there else interpolate(word, env)
        case "+":
            return interpolate(word, env) if there else ""
        case _ if there:
            return value or ""
        case _:
            raise Required(f"required variable {name[0]} is missing a value: {interpolate(word, env)}")


# --- judges ----------------------------------------------------------------------------


@cache
def engine() -> list[str]:
    """The command of compose, if there is one."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run(
                [*command, "version", "--short"], capture_output=True, text=True, check=False
            )
            if done.returncode == 0 and done.stdout.strip().lstrip("v")[:2] not in {"", "1."}:
                return command
    return []


def refusal(text: str, env: Mapping[str, str], folder: Path) -> str:
    """Why compose would not take this file, or nothing."""
    file = folder / "docker-compose.yml"
    file.write_text(text, encoding="utf-8")
    if command := engine():
        # an environment file of our own, or compose would read the `.env` of whoever runs the tests
        (folder / "given.env").write_text("".join(f"{name}={value}\n" for name, value in env.items()))
        argv = [*command, "--env-file", str(folder / "given.env"), "-f", str(file), "config", "--quiet"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""
    try:
        filled = document(env, text)
    except Required as error:
        return str(error)
    return against_schema(filled, folder)


def against_schema(filled: Any, folder: Path) -> str:
    """What the published schema has against it, or nothing."""
    file = folder / "filled.json"
    file.write_text(json.dumps(filled), encoding="utf-8")
    validator = Path(sysconfig.get_path("scripts")) / "check-jsonschema"
    argv = [str(validator), "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "Schema validation errors" in done.stdout, done.stdout + done.stderr
    return done.stdout if done.returncode else ""


# --- the server -------------------------------------------------------------------------


class Composed(Server):
    """A server whose command line is that of the compose file; the port and folder are the tests'."""

    def __init__(self, env: Mapping[str, str]) -> None:
        filled = document(env)
        lines = filled["configs"]["redis"]["content"].splitlines()
        super().__init__(dict(line.split(" ", 1) for line in lines))
        self.flags: list[str] = filled["services"]["redis"]["command"][2:]
        for name in ("save", "appendonly"):  # what tests turn off by default
            del self.config[name]

    def _command(self) -> list[str]:
        return [*super()._command(), *self.flags]

    def setting(self, name: str) -> str:
        return str(self.ask("CONFIG", "GET", name)[1], "utf-8")
