"""Torch's profiler has the version of torch, and one with a program that of the program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.facts.captures.profilers import Refused
from portagpu.traces.profile import choice


@pytest.mark.parametrize(
    ("build", "version"),
    [(SimpleNamespace(version="2.13.0+cpu"), "2.13.0+cpu"), (None, "")],
)
def test_torch_s_profiler_has_the_version_of_torch(
    build: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "torch_build", lambda: build)
    found = choice.installed(choice.PROFILER)
    assert found is not None
    assert (found.path, found.version) == (choice.PROFILER.name, version)


ACME: Any = SimpleNamespace(name="acme", places=(), version_pattern=r"version (\d+\.\d+)")


@pytest.mark.parametrize(
    ("out", "err", "version"),
    [
        (b"Acme version 3.14 (build 7)\n", b"", "3.14"),
        (b"", b"acme: version 2.0\n", "2.0"),
        (b"usage: acme COMMAND\n", b"", None),
        (b"", b"", None),
    ],
)
def test_a_program_says_its_version_on_either_stream(
    out: bytes, err: bytes, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(stdout=out, stderr=err)
    monkeypatch.setattr(choice, "find_program", lambda _: "/opt/acme")
    monkeypatch.setattr(choice, "run_program", lambda *_, **__: done)
    if version is None:
        shown = out.decode().strip() or "nothing"
        with pytest.raises(Refused, match=f"cannot read a version .* which printed: {shown}"):
            choice.installed(ACME)
    else:
        assert choice.installed(ACME) == choice.Tool("/opt/acme", version)


def test_a_program_that_is_nowhere_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_program", lambda _: None)
    assert choice.installed(ACME) is None
