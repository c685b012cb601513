"""Backends that cannot be judged: each is one line, which says what its author has to change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from portagpu.base.errors import PortagpuError
from tests.process.test_suite_odd_backends import MODULE
from tests.support import registry_state
from tests.support.case_files import conform, write_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


CHANGES = {
    "lists no capabilities": ("handle.capabilities = None", "'NoneType' object is not iterable"),
    "has no library for ranks": ("handle.comm = None", "no attribute 'version'"),
    "has no versions": ("handle.versions = None", "'NoneType' object is not a mapping"),
    "has a version that is not text": (
        "handle.versions = {'driver': 5}",
        "its driver is 5 instead",
    ),
    "has a product that is not text": ("handle.product = b'GPU'", "its product is b'GPU' instead"),
    "raises what is not an exception": ("raise BaseException('odd')", "BaseException: odd"),
    "aborts": ("os.write(2, b'no such queue\\n'); os.abort()", "SIGABRT: no such queue"),
    "aborts silently": ("os.abort()", "SIGABRT: Fatal Python error: Aborted"),
}


@pytest.mark.parametrize("name", ["has no versions", "aborts"])
def test_the_verb_prints_such_a_line(name: str, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    source = MODULE.format(change=change)
    install(tmp_path, "portagpu-odd", {"odd": "portagpu_odd:PLUGIN"}, {"portagpu_odd": source})
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = ("conform", "--backend", "odd", "--only", "rng", "--seed", "0")
    done = subprocess.run(
        [sys.executable, "-m", "portagpu", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (1, 3), done.stdout
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("name", CHANGES)
def test_a_device_that_cannot_be_described_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = CHANGES[name]
    source = MODULE.format(change=change)
    install(tmp_path, "portagpu-odd", {"odd": "portagpu_odd:PLUGIN"}, {"portagpu_odd": source})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "portagpu_odd", raising=False)
    registry_state.forget(monkeypatch)
    folder = write_cases(tmp_path / "cases", '@case("rng/a", spec="Is.")\ndef test_a(gpu): pass\n')
    with pytest.raises(PortagpuError) as raised:
        conform("odd", folder=folder)
    (line,) = str(raised.value).splitlines()
    assert said in line
