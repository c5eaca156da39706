"""The code in README.md and docs/ runs: what a reader types is what was tested.

Every ```python block is a program and every ```console block a session of which the lines `$ graflow-ckpt …`
and `$ python …` are run (others are shown only). A block runs in a fresh folder, with warnings as errors.
Comments on the lines right above a block change that, one each:

    <!-- docs: continue -->      goes on from the block before, in its folder; python blocks are one program
    <!-- docs: file train.py --> the name the program is saved under, so that a console block can start it
    <!-- docs: exit 75 -->       the exit status to expect of the program, or of the session's last command
    <!-- docs: skip REASON -->   not a program; says why

A command followed by `$ echo $?` is expected to exit with the status printed there.
Not checked: what the programs print; it has times, paths and ids in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from graflow_ckpt.observers.prometheus import PrometheusObserver, StoreCollector
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.testing import AtomicDriverContract
from tests.conformance.contracts.fencing import Snapshot
from tests.conformance.contracts.store import WithProcesses
from tests.conformance.contracts.trio import Opener
from tests.conformance.restoring import in_folder
from tests.servers import Server
from tests.trios import put

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[^\s`]*)[^`]*$")
MARKER = re.compile(r"^\s*<!-- docs: (?P<verb>\w+) ?(?P<argument>.*?) *-->\s*$")
COMMAND = re.compile(r"^\$ (?P<command>(?:\w+=\S+ +)*(?:graflow-ckpt|python)\b(?! -m (?:pip|venv)\b).*)$")
ALIASES = {"py": "python", "python3": "python", "Python": "python", "shell-session": "console"}


@dataclass
class Block:
    """One fenced block with what the comments above it say."""

    page: str
    line: int
    language: str
    code: str
    markers: dict[str, str]


@dataclass
class Step:
    """A program that is saved under its name, or without a name a line for the shell."""

    text: str
    status: int = 0
    name: str = ""


@dataclass
class Story:
    """What runs in one folder: a block and those that continue it."""

    name: str
    steps: list[Step] = field(default_factory=list)


def blocks(page: str, text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), start=1))
    markers: dict[str, str] = {}
    for number, line in lines:
        where = f"{page}:{number}"
        if marker := MARKER.match(line):
            verb, argument = marker["verb"], marker["argument"]
            assert verb in {"continue", "file", "exit", "skip"}, f"{where}: unknown marker {verb!r}"
            assert (verb == "continue") == (not argument), f"{where}: {verb!r} with argument {argument!r}"
            markers[verb] = argument
        elif fence := FENCE.match(line):
            body = []
            for _, inner in lines:
                if inner.strip().startswith(fence["ticks"]) and not inner.strip().strip("`~"):
                    break
                body.append(inner.removeprefix(fence["indent"]))
            else:
                raise AssertionError(f"{where}: the block has no end")
            language = fence["language"]
            assert language not in ALIASES, (
                f"{where}: write {ALIASES[language]!r} for {language!r}, else it is not run"
            )
            yield Block(page, number, language, "\n".join(body) + "\n", markers)
            markers = {}
        else:
            assert not markers, f"{where}: a docs marker stands right above its block"
    assert not markers, f"{page}: a docs marker stands right above its block"


def commands(block: Block) -> list[Step]:
    shell = re.sub(r"\\\n *", "", block.code).splitlines()
    found: list[Step] = []
    for at, line in enumerate(shell):
        if line == "$ echo $?" and found:
            found[-1].status = int(shell[at + 1])
        elif match := COMMAND.match(line):
            found.append(Step(match["command"]))
    if found and "exit" in block.markers:
        found[-1].status = int(block.markers["exit"])
    return found


def stories(page: str, text: str) -> Iterator[Story]:
    story: Story | None = None
    for block in blocks(page, text):
        if block.language not in {"python", "console"}:
            assert not block.markers, f"{page}:{block.line}: a marker above a block that is never run"
            continue
        if "skip" in block.markers:
            continue
        if "continue" not in block.markers:
            if story is not None:
                yield story
            story = Story(f"{page}:{block.line}")
        assert story is not None, f"{page}:{block.line}: there is nothing to continue"
        status = int(block.markers.get("exit", "0"))
        match (block.language, story.steps):
            case ("console", steps):
                steps.extend(commands(block))
            case (_, [*_, last]) if last.name and "file" not in block.markers:
                last.text, last.status = last.text + block.code, status
            case (_, steps):
                steps.append(Step(block.code, status, block.markers.get("file", "example.py")))
    if story is not None:
        yield story


def run(step: Step, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = ["/bin/sh", "-c", step.text]
    if step.name:
        (folder / step.name).write_text(step.text, encoding="utf-8")
        argv = [sys.executable, step.name]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "COLUMNS": "120",
        "PYTEST_ADDOPTS": "--rootdir=. -p no:cacheprovider",  # whatever somebody has left in a folder above
    }
    return subprocess.run(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


def play(story: Story, folder: Path) -> None:
    for step in story.steps:
        done = run(step, folder)
        status = 128 - done.returncode if done.returncode < 0 else done.returncode  # as a shell has it
        assert status == step.status, f"{story.name}: {step}\nexit {status}\n{done.stdout}{done.stderr}"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A private server in the environment, and a worker on it."""
    with Server({}) as server:
        monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", server.url)
        monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
        with open(tmp_path / "worker.log", "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "graflow_ckpt", "worker"], cwd=tmp_path, stdout=log, stderr=log
            )
            yield
            worker.terminate()
            assert worker.wait(60) == 0, (tmp_path / "worker.log").read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "$ graflow-ckpt submit" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("fleet")
    for number, story in enumerate(stories(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        play(story, folder)


SAMPLE = """
```python
print(1)
```

<!-- docs: continue -->
```python
open("made", "w").close(); raise SystemExit(3)
```
<!-- docs: continue -->
```console
$ python -c 'import os; os.stat("made")'
$ make something
$ python -c 'raise SystemExit(7)'
$ echo $?
7
```
"""


def test_blocks_that_continue_share_a_program_and_a_folder(tmp_path: Path) -> None:
    (story,) = stories("page.md", SAMPLE.replace("raise SystemExit(3)", ""))

    assert [step.name for step in story.steps] == ["example.py", "", ""]
    play(story, tmp_path)


def test_a_program_that_fails_is_reported(tmp_path: Path) -> None:
    (story,) = stories("page.md", SAMPLE)

    with pytest.raises(AssertionError, match="exit 3"):
        play(story, tmp_path)


def test_an_expected_exit_status_is_compared(tmp_path: Path) -> None:
    (story,) = stories("page.md", "<!-- docs: exit 75 -->\n```python\nraise SystemExit(75)\n```\n")
    (other,) = stories("page.md", "<!-- docs: exit 75 -->\n```python\n```\n")

    play(story, tmp_path)
    with pytest.raises(AssertionError, match="exit 0"):
        play(other, tmp_path)


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    (story,) = stories("page.md", "```python\nimport warnings; warnings.warn('old')\n```\n")

    with pytest.raises(AssertionError, match="UserWarning: old"):
        play(story, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- docs: skip -->\n```python\n```\n",
        "<!-- docs: ignore this -->\n```python\n```\n",
        "<!-- docs: skip it is a sketch -->\n\n```python\n```\n",
        "<!-- docs: exit 1 -->\n```json\n```\n",
        "<!-- docs: continue -->\n```python\n```\n",
        "```py\n```\n",
        "```python\n",
    ],
)
def test_what_would_silently_not_run_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        list(stories("page.md", text))


LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings as a forge makes links of them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = page.parent / link["path"] if link["path"] else page
        if not target.exists() or (link["heading"] and link["heading"] not in anchors(target)):
            found.append(link[0])
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `thing`: two\n[a](page.md#one-thing-two) [b](gone.md) [c](#three)\n", encoding="utf-8"
    )

    assert broken(page) == ["](gone.md)", "](#three)"]


def test_each_promise_names_the_tests_that_guard_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (P\d) \|.*\|(.*)\|$", readme, re.MULTILINE)

    assert [name for name, _ in rows] == [f"P{n}" for n in range(1, 10)]
    assert all(LINK.search(guards) for _, guards in rows)


# --- dashboard, alert rules and runbook speak of metrics that there are, and of each other ---


DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\b(?:checkpoint|checkpoints|graflow|orphaned)_[a-z_]+\b")


@pytest.fixture
def known(tmp_path: Path) -> Iterator[set[str]]:
    """The names of all metrics as they are exposed."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    store = Fallback(MemoryStore("memory://docs"), str(tmp_path))
    put(store, "best", "one")
    StoreCollector(store).register(registry)
    yield {
        name
        for family in registry.collect()
        for name in (
            family.name,
            *(
                f"{family.name}_{end}"
                for end in {"histogram": ("bucket", "count", "sum")}.get(family.type, ())
            ),
            *([f"{family.name}_total"] if family.type == "counter" else ()),
        )
    }
    MemoryStore("memory://docs").forget()


def alerts() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load(DOCS / "observing" / "alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_alert_rules_are_about_metrics_that_there_are(known: set[str]) -> None:
    for rule in alerts():
        used = set(NAME.findall(rule["expr"]))
        assert used, rule["alert"]
        assert used <= known, rule["alert"]


def test_the_dashboard_is_about_metrics_that_there_are(known: set[str]) -> None:
    board = json.loads((DOCS / "observing" / "dashboard.json").read_text(encoding="utf-8"))

    used = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in NAME.findall(target["expr"])
    }

    assert len(used) >= 12
    assert used <= known


def test_each_alert_has_its_section_in_the_runbook_and_no_section_is_about_none() -> None:
    text = (DOCS / "runbook.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_the_page_names_the_metrics_that_there_are(known: set[str]) -> None:
    named = set(
        re.findall(
            r"`((?:checkpoint|checkpoints|graflow|orphaned)_[a-z_]+)`",
            (DOCS / "observing.md").read_text(encoding="utf-8"),
        )
    )
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known}

    assert named <= families | {"graflow_ckpt"}
    assert {"checkpoint_save_duration_seconds", "checkpoint_errors_total", "checkpoints_per_flow"} <= named


# --- the driver of docs/drivers.md, under the contract of stores ------------------------


@pytest.fixture(scope="module")
def driver_of_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its class, in a module that other processes find, too."""
    text = (ROOT / "docs/drivers.md").read_text(encoding="utf-8")
    (code,) = [
        each.code for each in blocks("drivers.md", text) if each.markers.get("file") == "json_driver.py"
    ]
    assert code.count("\n") <= 200
    folder = tmp_path_factory.mktemp("page")
    (folder / "json_driver.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("json_driver").JsonDriver
        del sys.modules["json_driver"]


def store_in(folder: Path, lease: float) -> KeyedStore:
    return KeyedStore(import_module("json_driver").JsonDriver(folder), f"json://{folder}", lease=lease)


class TestJsonStore(WithProcesses):
    @pytest.fixture
    def opener(self, tmp_path: Path, driver_of_the_page: Any) -> Opener:
        return partial(store_in, tmp_path / "things", self.lease_seconds)

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Snapshot:
        return in_folder(tmp_path / "things")


# --- broken ------------------------------------------------------------------------------

ALONE = threading.Lock()


def locks_threads_only(sound: Any) -> Any:
    class LocksThreadsOnly(sound):  # type: ignore[misc]
        """What other processes do comes between."""

        @contextmanager
        def _locked(self) -> Iterator[None]:
            with import_module(__name__).ALONE:
                self._carry_out()
                yield

    return LocksThreadsOnly


def carries_out_as_it_goes(sound: Any) -> Any:
    class CarriesOutAsItGoes(sound):  # type: ignore[misc]
        """Who is killed leaves the first keys of a batch, and nobody ends it."""

        @contextmanager
        def _locked(self) -> Iterator[None]:
            with open(self.folder / "lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                (self.folder / "decided").unlink(missing_ok=True)
                yield

    return CarriesOutAsItGoes


@pytest.mark.parametrize(
    ("broken", "test", "turns"),
    [
        (locks_threads_only, "test_no_change_is_lost_between_processes", 20),
        (carries_out_as_it_goes, "test_of_a_batch_of_a_process_that_is_killed_there_is_all_or_nothing", 1),
    ],
)
def test_a_driver_that_is_wrong_about_processes_is_convicted(
    driver_of_the_page: Any, tmp_path: Path, broken: Any, test: str, turns: int
) -> None:
    kind = broken(driver_of_the_page)

    def run() -> None:
        for turn in range(turns):  # what comes between two is a matter of luck
            getattr(AtomicDriverContract(), test)(partial(kind, tmp_path / str(turn)))

    with pytest.raises((AssertionError, OSError, ValueError)):  # or it finds halves of files itself
        run()
