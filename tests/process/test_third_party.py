"""Third-party backends that are broken, slow or in each other's way: reported, and in nobody's way.

Each test puts distributions (a module and its metadata) on a child process's path.
"""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs

GOOD = """
from portagpu import Plugin, Status

class Good(Plugin):
    name = "{name}"
    contract = (1, 0)

    def status(self):
        return Status(True, "{name} is well")

    def count(self):
        return 1

    def open(self, index):
        raise NotImplementedError

PLUGIN = Good()
"""

REPORT = """
import json, portagpu.devices.discovery as candidates
from portagpu.base.patience import Limits
candidates.LIMITS = Limits(load_s=0.5)
print(json.dumps({name: [s.usable, s.reason] for name, s in candidates.statuses().items()}))
"""


def distribute(folder: Path, distribution: str, backend: str, code: str) -> Path:
    """Lay a distribution with one backend into ``folder``, as pip would; returns the folder."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(textwrap.dedent(code), "utf-8")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        f"[portagpu.backends]\n{backend} = {module}:PLUGIN\n", "utf-8"
    )
    return folder


@pytest.fixture
def statuses(verbs: ForkedVerbs, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """The status of every candidate as a child process sees it, with what is in ``tmp_path``."""

    def ask() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(verbs(body=REPORT, path=[tmp_path]).ok())
        return found

    return ask


def test_backend_called_cpu_is_ignored_and_named(verbs: ForkedVerbs, tmp_path: Path) -> None:
    distribute(tmp_path, "usurper", "cpu", GOOD.format(name="cpu"))
    ended = verbs(body=REPORT, path=[tmp_path])
    found = json.loads(ended.ok())
    assert "cpu is well" not in found["cpu"][1], "a third party's 'cpu' must not replace ours"
    assert "usurper" in ended.err, f"the ignored distribution must be named, not {ended.err!r}"


def test_two_backends_of_one_name_are_both_refused(
    statuses: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    for distribution in ("first", "second"):
        distribute(tmp_path, distribution, "twin", GOOD.format(name="twin"))
    found = statuses()
    usable, reason = found["twin"]
    assert not usable, "neither of two backends of one name may be picked by chance"
    assert "first" in reason, f"both owners must be named, not {reason!r}"
    assert "second" in reason, f"both owners must be named, not {reason!r}"
    assert "cpu" in found


def test_asking_for_one_backend_loads_no_other(verbs: ForkedVerbs, tmp_path: Path) -> None:
    distribute(tmp_path, "loud", "loud", "raise SystemExit('loud was loaded')")
    distribute(tmp_path, "wanted", "wanted", GOOD.format(name="wanted"))
    code = """
import sys
from portagpu.devices.discovery import plugin
print(plugin("wanted").name, "loud" in sys.modules)
"""
    assert verbs(body=code, path=[tmp_path]).ok().split() == ["wanted", "False"]


def test_closest_name_is_offered(verbs: ForkedVerbs, tmp_path: Path) -> None:
    distribute(tmp_path, "wanted", "wanted", GOOD.format(name="wanted"))
    code = """
import portagpu
try:
    portagpu.backend("wantd")
except portagpu.BackendNotFound as error:
    print(error)
"""
    said = verbs(body=code, path=[tmp_path]).ok()
    assert "did you mean 'wanted'?" in said


def test_info_shows_a_broken_backend_with_its_reason(verbs: ForkedVerbs, tmp_path: Path) -> None:
    distribute(tmp_path, "other", "other", "raise RuntimeError('<b>no driver</b>')")
    ended = verbs("info", "--json", "-", path=[tmp_path])
    backends = {entry["name"]: entry for entry in json.loads(ended.ok())["backends"]}
    assert backends["other"]["usable"] is False
    assert "raised RuntimeError: <b>no driver</b>" in backends["other"]["reason"]
