"""Bars are for somebody who watches."""

from __future__ import annotations

import io
import sys

import pytest

from graflow_ckpt.interfaces.cli.manner import along, bar, counter


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the place of standard error."""
    made = Screen()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_on_a_terminal_it_is_shown_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    assert list(along(["a", "b"], "copying", show=True)) == ["a", "b"]

    assert "copying" in seen.getvalue()
    assert "2/2" in seen.getvalue()


def test_each_that_is_done_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    with counter("deleting", 4, show=True) as done:
        done("one")

    assert "1/4" in seen.getvalue()


def test_nobody_who_reads_json_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screen(monkeypatch)

    with bar("looking", show=False) as told:
        told(1, 2)

    assert seen.getvalue() == ""


def test_nobody_who_reads_a_pipe_sees_one(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("looking") as told:
        told(1, 2)

    assert capsys.readouterr().err == ""
