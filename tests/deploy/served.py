"""The server of docker-compose.yml, started with the flags and the file that stand there."""

from __future__ import annotations

from collections.abc import Mapping

from tests.deploy.composed import document
from tests.servers import Server


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
