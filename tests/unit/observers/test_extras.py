"""Without their packages the observers say what to install, and nothing else of the package needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from graflow_ckpt import task, workflow
from graflow_ckpt.core.errors import PackageMissing
try:
    import graflow_ckpt.observers.{module}
except PackageMissing as error:
    print(error.extra, error)
with workflow("w") as flow:
    @task
    def a():
        return 1
    assert flow.execute() == 1
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, extra: str) -> None:
    program = PROGRAM.format(module=module, package=package)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"{extra} There can be no")
    assert f"pip install 'graflow-ckpt[{extra}]'" in done.stdout


def test_a_run_without_observers_loads_neither() -> None:
    program = PROGRAM.format(module="", package="nothing").split("try:")[0] + (
        "with workflow('w') as flow:\n    @task\n    def a(): ...\n    flow.execute()\n"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
