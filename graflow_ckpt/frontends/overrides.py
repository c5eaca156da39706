"""The settings of a program's workflows that the command line and the environment override.

`graflow-ckpt run FILE.py` and `python FILE.py` are one program: the file is the same, and this
is all that differs. The session applies to the workflow that is chosen, else to the first one
that asks; further ones get ids made from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graflow_ckpt.core.events import Observer
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores.places import FOLDER, for_program


class Planned(BaseException):
    """Ends a program that was run for its graph alone; not an error, so no program catches it."""

    def __init__(
        self,
        workflow: Any,
        starts: tuple[str, ...],
        inputs: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> None:
        super().__init__(workflow)
        self.workflow = workflow
        self.starts = starts
        self.inputs = dict(inputs or {})  # what the program itself would have given it
        self.max_steps = max_steps


class Overrides:
    """One per process; the command line fills it before it runs the program. Workflows go by their names."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.store: str | None = None
        self.here = False  # a session that the program has begun elsewhere begins again in this place
        self.only: str | None = None  # the workflow to run
        self.target: str | None = None  # the workflow that all of this is about; None: whichever asks
        self.planning = False  # nothing runs: the first `execute` or `submit` ends the program
        self.inputs: dict[str, Any] = {}
        self.max_steps: int | None = None
        self.settings: dict[str, Any] = {}  # fields of Settings
        # ends the owner of a session at an address; False if the store there can fence it instead
        self.take_over: Callable[[str, str], bool] = lambda store, session: False
        self.observers: tuple[Observer, ...] = ()
        self.met: list[Any] = []  # the workflows of the program, for a command line that runs them
        self.executed: list[str] = []
        self.collecting = False
        self._given: list[str] = []

    @contextmanager
    def for_one_program(self, **said: Any) -> Iterator[None]:
        """Say this to one program. Forget at the end what is said and met: the process may run another."""
        before = dict(vars(self))
        vars(self).update(said, met=[], executed=[], _given=[])
        try:
            yield
        finally:
            vars(self).update(before)

    def meet(self, workflow: Any) -> None:
        if self.collecting:
            self.met.append(workflow)

    def wants(self, workflow: str) -> bool:
        """Return True if this workflow is to run."""
        wanted = self.only in (None, workflow)
        if wanted:
            self.executed.append(workflow)
        return wanted

    def concerns(self, workflow: str) -> bool:
        """Return True if what was said is about this workflow."""
        return self.target in (None, workflow)

    def prepared(self, planned: Planned) -> None:
        """Stop a plan here: the graph is complete and nothing has been touched."""
        if self.planning and self.concerns(planned.workflow.name):
            raise planned

    def apply(
        self, workflow: str, session: str | None, settings: Settings, store: str | None
    ) -> tuple[str | None, Settings, str]:
        """Return session id, settings and store as they count."""
        if self.planning:  # what a program does before `execute` touches no session
            return None, replace(settings, durability="none", resume="auto"), store or FOLDER
        if not self.concerns(workflow):
            return session, settings, store or self._usual(session, settings)
        session = self._session(workflow, session)
        settings = replace(settings, **self.settings, observers=(*settings.observers, *self.observers))
        where = self.store or store or self._usual(session, settings)
        if self.settings.get("take_over") and session is not None:
            settings = replace(settings, take_over=not self.take_over(where, session))
        return session, settings, where

    def _usual(self, session: str | None, settings: Settings) -> str:
        return for_program(session, settings.program, here=self.here)

    def _session(self, workflow: str, session: str | None) -> str | None:
        given = self.session or os.environ.get("GRAFLOW_CKPT_SESSION")
        if not given:  # an empty variable sets nothing
            return session
        if self._given and workflow not in self._given:
            return session or f"{given}-{workflow}"
        self._given.append(workflow)
        return given


overrides = Overrides()
