"""The benchmark frame can fail: a missed bar is reported as missed, and nothing is measured by accident."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import (
    GROSS,
    AtLeast,
    AtMost,
    Bar,
    Case,
    Contest,
    Extra,
    Faster,
    Ratio,
    Rival,
    Run,
    Side,
    Within,
    figures,
    measure,
)
from benchmarks.peers.processes import Processes
from tests.stretch import until

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").glob("bench_*.py"))


def reports(value: float) -> Side:
    return lambda run: run.report(value)


@pytest.mark.parametrize(
    ("bar", "subject", "floor", "ok"),
    [
        (Ratio(2.0), 1.99, 1.0, True),
        (Ratio(2.0), 2.01, 1.0, False),
        (AtMost(15, "µs"), 14.9e-6, 1e-6, True),
        (AtMost(15, "µs"), 15.1e-6, 1e-6, False),
        (Extra(60, "ms"), 0.069, 0.010, True),
        (Extra(60, "ms"), 0.071, 0.010, False),
        (Within(0.01), 1009.0, 1000.0, True),
        (Within(0.01), 1011.0, 1000.0, False),
        (Within(0.01), 989.0, 1000.0, False),
        (Faster(30), 1e-5, 30.1e-5, True),
        (Faster(30), 1e-5, 29.9e-5, False),
        (AtLeast(50_000, "/s"), 1 / 50_100, 1.0, True),
        (AtLeast(50_000, "/s"), 1 / 49_900, 1.0, False),
    ],
)
def test_a_bar_is_met_or_missed(tmp_path: Path, bar: Bar, subject: float, floor: float, ok: bool) -> None:
    figure = measure(Case("case", reports(subject), reports(floor), bar), tmp_path, smoke=False)

    assert figure.ok is ok
    assert len(figure.judged) == 7
    assert figure.row()[-1] == ("ok" if ok else "MISSED")


@pytest.mark.parametrize("bar", [Ratio(1.0), Faster(1.0)])
@pytest.mark.parametrize(("ratio", "ok"), [(GROSS - 0.1, True), (GROSS + 0.1, False)])
def test_a_smoke_run_fails_on_gross_misses_only(tmp_path: Path, bar: Bar, ratio: float, ok: bool) -> None:
    figure = measure(Case("case", reports(ratio), reports(1.0), bar), tmp_path, smoke=True)

    assert figure.ok is ok


@pytest.mark.parametrize(("second", "ok"), [(1.0, True), (GROSS * 50, False)])
def test_a_smoke_run_fails_if_each_pair_is_a_gross_miss(tmp_path: Path, second: float, ok: bool) -> None:
    values = iter([GROSS * 50, second])

    figure = measure(
        Case("case", lambda run: run.report(next(values)), reports(1.0), Ratio(2.0)), tmp_path, smoke=True
    )

    assert figure.ok is ok


def test_a_rate_is_shown_as_operations_per_second_and_compared_as_such(tmp_path: Path) -> None:
    case = Case("case", reports(1 / 30_000), reports(1 / 1_500), Faster(3), unit="/s")

    row = measure(case, tmp_path, smoke=False).row()

    assert row[1].startswith("30,000 /s")
    assert row[2].startswith("1,500 /s")
    assert row[3].startswith("20 ")


def test_a_median_is_judged_and_not_one_bad_pair(tmp_path: Path) -> None:
    values = iter([0.0, 1.0, 1.0, 900.0, 1.0, 1.0, 1.0, 1.0])  # the first pair warms up and does not count
    case = Case("case", lambda run: run.report(next(values)), reports(1.0), Ratio(1.5))

    figure = measure(case, tmp_path, smoke=False)

    assert figure.ok
    assert max(figure.judged) == 900.0
    assert 0.0 not in figure.subject


def test_the_sides_take_turns_in_going_first(tmp_path: Path) -> None:
    order = []

    def side(name: str) -> Side:
        def call(run: Run) -> None:
            order.append(name)
            run.report(1.0)

        return call

    measure(Case("case", side("s"), side("f"), None), tmp_path, smoke=False)

    assert "".join(order) == "sffssffssffssffs"


def test_the_sides_of_a_contest_are_measured_once_a_round_and_judged_by_it(tmp_path: Path) -> None:
    order = []

    def side(name: str, value: float) -> Side:
        def call(run: Run) -> None:
            order.append(name)
            run.report(value)

        return call

    rivals = [
        Rival("fast", side("f", 2.0), Faster(3)),
        Rival("slow", side("w", 4.0), Faster(3)),
        Rival("", side("x", 1.0)),
    ]
    found = figures(Contest("case", side("s", 1.0), rivals), tmp_path, smoke=False)

    assert "".join(order) == "sfwx" + "xwfssfwx" * 3 + "xwfs"
    assert [figure.row()[0] for figure in found] == ["case · fast", "case · slow", "case"]
    assert [figure.row()[-1] for figure in found] == ["MISSED", "ok", ""]
    assert all(len(figure.subject) == len(figure.floor) == 7 for figure in found)


def test_a_contest_without_rivals_is_refused() -> None:
    with pytest.raises(ValueError, match="no rivals"):
        Contest("case", reports(1.0), [])


def test_each_call_has_a_fresh_folder_that_is_gone_afterwards(tmp_path: Path) -> None:
    def side(run: Run) -> None:
        (run.folder / "left").open("x").close()
        run.report(1.0)

    measure(Case("case", side, side, None), tmp_path, smoke=False)

    assert list(tmp_path.iterdir()) == []


def test_only_what_is_timed_counts_and_operations_share_it(tmp_path: Path) -> None:
    run = Run(tmp_path, "cpu", smoke=False)

    sum(range(3_000_000))  # not counted
    with run.timed(per=1_000_000):
        sum(range(30_000))

    assert run.value is not None
    assert 0 <= run.value < 1e-6


def test_a_side_that_measures_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="measured nothing"):
        measure(Case("case", lambda run: None, None, AtMost(1, "s")), tmp_path, smoke=True)


def test_a_side_that_measures_twice_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, "wall", smoke=False)
    run.report(1.0)

    with pytest.raises(RuntimeError, match="already"):
        run.report(1.0)


def test_workers_that_are_held_stand_still_with_all_their_children(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60 & wait"]

    with Processes([command, command], {}, tmp_path / "log") as processes:
        until(lambda: len(processes.members()) == 4)
        processes.hold()
        held = [state(pid) for pid in processes.members()]
        processes.let_go()
        until(lambda: all(state(pid) == "S" for pid in processes.members()))

    assert held == ["T"] * 4
    until(lambda: processes.members() == [])


def test_no_worker_outlives_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from benchmarks.peers.processes import Processes
from tests.stretch import until
workers = Processes([["sleep", "60"]], {{}}, Path({str(tmp_path / "log")!r}))
print(workers.leaders[0].pid, flush=True)
workers.leaders[0].wait()
"""
    benchmark = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with benchmark:
        assert benchmark.stdout is not None
        worker = int(benchmark.stdout.readline())
        benchmark.kill()

    until(lambda: state(worker) in "XZ")


def state(pid: int) -> str:
    """As /proc shows it: S sleeps, T stands still; Z and X are dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_says_its_question_method_unit_and_regression(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    question, _, rest = (ast.get_docstring(tree) or "").partition("\n")

    assert question.endswith("?")
    assert [word for word in ("Method:", "Unit:", "floor", "A regression:") if word not in rest] == []
