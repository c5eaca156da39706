"""docker-compose.yml as compose reads it: YAML 1.2, with its variables put in.

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

import pytest
from ruamel.yaml import YAML

from tests.deploy import files
from tests.servers import Server

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
GIVEN = {"GRAFLOW_CKPT_KEY": f"id:{'0' * 64}", "GRAFLOW_CKPT_REDIS_PASSWORD": "5ecret"}

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):([-?])([^${}]*)\}")


class Required(Exception):
    """`${NAME:?message}` and NAME is not there."""


def document(env: Mapping[str, str] | None = None, text: str | None = None) -> Any:
    """The file with the variables of `env` in it; None: as it is written."""
    raw = YAML(typ="safe", pure=True).load(FILE.read_text(encoding="utf-8") if text is None else text)
    return raw if env is None else _each(raw, lambda value: interpolate(value, env))


def variables() -> set[str]:
    """The names that the file takes from its environment."""
    return {name for value in strings(document()) for name, *_ in VARIABLE.findall(value)}


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


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """The text with the variables in it; refused is what our own file does not use of compose's forms."""

    def value(found: re.Match[str]) -> str:
        name, operator, word = found.groups()
        if operator == "?" and not env.get(name):
            raise Required(f"required variable {name} is missing a value: {word}")
        return env.get(name) or word

    assert "$" not in VARIABLE.sub("", text), f"neither ${{NAME:-default}} nor ${{NAME:?message}}: {text}"
    return VARIABLE.sub(value, text)


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


# --- docker-compose.yml -----------------------------------------------------------------


TEXT = FILE.read_text(encoding="utf-8")
SERVICES = sorted(document()["services"])


@pytest.fixture
def services() -> Any:
    return document(GIVEN)["services"]


def seconds(duration: str) -> int:
    amounts = re.findall(r"(\d+)(h|m|s)", duration)
    assert "".join(number + unit for number, unit in amounts) == duration
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in amounts)


def pairs(words: list[str]) -> dict[str, str]:
    return {words[at].removeprefix("--"): words[at + 1] for at in range(0, len(words), 2)}


# --- the file as a whole ---------------------------------------------------------------


def test_compose_takes_the_file(tmp_path: Path) -> None:
    assert refusal(TEXT, GIVEN, tmp_path) == ""


def test_the_published_schema_takes_the_file(tmp_path: Path) -> None:
    assert against_schema(document(GIVEN), tmp_path) == ""


@pytest.mark.parametrize(
    ("ours", "broken"),
    [
        ("      replicas: 2", "      replica: 2"),
        ("        condition: service_healthy", "        condition: healthy"),
        ("    stop_grace_period: 45s", "    stop_grace: 45s"),
        ("    cap_drop: [ALL]", "    cap_drop: ALL"),
        ("      target: /etc/graflow-ckpt.conf", "      to: /etc/graflow-ckpt.conf"),
    ],
)
def test_a_mistake_in_the_file_is_seen(ours: str, broken: str, tmp_path: Path) -> None:
    assert TEXT.count(ours) == 1

    assert refusal(TEXT.replace(ours, broken), GIVEN, tmp_path) != ""


DEPLOYED = [
    FILE,
    ROOT / ".dockerignore",
    *sorted(path for path in (ROOT / "workers").iterdir() if path.is_file()),
]


@pytest.mark.parametrize("file", DEPLOYED, ids=[file.name for file in DEPLOYED])
def test_no_file_has_a_secret(file: Path) -> None:
    text = re.sub(r"\$\{[^}]*\}", "", file.read_text(encoding="utf-8"))

    assert not re.search(r"[0-9a-fA-F]{32}", text)
    assert set(re.findall(r"://[^@/\s]*:([^@/\s]*)@", text)) <= {"", "PASSWORD"}


# --- variables -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, ""], ids=["absent", "empty"])
@pytest.mark.parametrize("secret", sorted(GIVEN))
def test_without_a_secret_it_stops_by_name(secret: str, value: str | None, tmp_path: Path) -> None:
    given = {name: text for name, text in (GIVEN | {secret: value}).items() if text is not None}

    said = refusal(TEXT, given, tmp_path)

    assert secret in said
    assert "run make fleet-env first" in said
    assert GIVEN["GRAFLOW_CKPT_KEY"] not in said


def test_every_variable_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")

    assert {name for name in variables() if f"`{name}`" not in page} == set()


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${UNSET:-d}${EMPTY:-d}${SET:-d}", "dd1"),
        ("redis://:${SET:?no}@redis:6379/0", "redis://:1@redis:6379/0"),
    ],
)
def test_variables_are_put_in_by_the_rules_of_compose(text: str, filled: str) -> None:
    assert interpolate(text, {"SET": "1", "EMPTY": ""}) == filled


@pytest.mark.parametrize("text", ["${UNSET:?say}", "${EMPTY:?say}"])
def test_a_required_variable_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(Required, match=r"(UNSET|EMPTY) is missing a value: say"):
        interpolate(text, {"EMPTY": ""})


@pytest.mark.parametrize(
    "text", ["$SET", "${SET}", "$$SET", "${SET-d}", "${SET:+d}", "${A:-${SET:-d}}", "5$"]
)
def test_every_variable_has_a_default_or_is_required(text: str) -> None:
    with pytest.raises(AssertionError):  # compose would put in nothing, and say so in a line of many
        interpolate(text, {"SET": "1"})


# --- services --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_comes_back_and_is_probed(name: str, services: Any) -> None:
    service = services[name]

    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert seconds(service["healthcheck"]["timeout"]) <= seconds(service["healthcheck"]["interval"])
    assert service["logging"]["driver"] == "local", "the default one never rotates"


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_has_a_tag(name: str, services: Any) -> None:
    _, colon, tag = services[name]["image"].rpartition(":")

    assert colon
    assert tag != "latest"


def test_what_is_mounted_exists(services: Any) -> None:
    whole = document(GIVEN)
    named = set()
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).is_dir(), "the engine would make it, as root"
            else:
                named.add(source)

    assert named == set(whole["volumes"])


def test_the_server_forgets_nothing(services: Any) -> None:
    command, config, *flags = services["redis"]["command"]
    told = pairs(flags)

    assert command in {"valkey-server", "redis-server"}
    assert told["appendonly"] == "yes"
    assert told["appendfsync"] == "everysec"
    assert told["maxmemory-policy"] == "noeviction"
    assert re.fullmatch(r"\d+(mb|gb)", told["maxmemory"])
    assert services["redis"]["configs"] == [{"source": "redis", "target": config}]
    assert [volume.split(":")[1] for volume in services["redis"]["volumes"]] == ["/data"]


def test_the_server_is_heard_on_this_machine_only(services: Any) -> None:
    assert services["redis"]["ports"] == ["127.0.0.1:6379:6379"]


def test_the_password_is_in_no_command(services: Any) -> None:
    for service in services.values():
        for words in (service["command"], service["healthcheck"]["test"]):
            assert all(secret not in word for word in words for secret in GIVEN.values())


def test_there_are_two_workers_that_wait_for_the_server(services: Any) -> None:
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["worker"]["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_a_worker_is_not_killed_within_its_grace_period(services: Any) -> None:
    worker = services["worker"]

    assert seconds(worker["stop_grace_period"]) >= int(worker["environment"]["GRAFLOW_CKPT_GRACE"]) + 10


def test_a_worker_is_probed_as_its_image_says(services: Any) -> None:
    probe = services["worker"]["healthcheck"]
    built = files.stages()[-1].last("HEALTHCHECK")

    assert ["CMD", *built.exec_form] == probe["test"]
    assert {name.replace("-", "_"): value for name, value in built.flags.items()} == {
        name: str(value) for name, value in probe.items() if name != "test"
    }


def test_a_worker_has_no_rights_that_it_does_not_need(services: Any) -> None:
    worker = services["worker"]

    assert "user" not in worker, "the image says who"
    assert worker["cap_drop"] == ["ALL"]
    assert worker["security_opt"] == ["no-new-privileges:true"]
    assert worker["read_only"] is True
    assert worker["tmpfs"] == ["/tmp"]
    # compose refuses contents of its own in a read-only container
    assert not {"configs", "secrets"} & set(worker)
    assert not {"privileged", "network_mode", "pid"} & set(worker)


def test_a_worker_writes_where_its_image_runs(services: Any) -> None:
    image = files.stages()[-1]
    targets = {volume.split(":")[1]: volume.split(":")[2:] for volume in services["worker"]["volumes"]}

    assert targets == {image.last("WORKDIR").text: [], "/app": ["ro"]}
    assert "PYTHONPATH=/app" in image.last("ENV").text.split()


def test_the_image_is_built_from_here(services: Any) -> None:
    build = services["worker"]["build"]

    assert (ROOT / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).resolve() == files.DOCKERFILE
