"""The suite catches broken collectives; see ``tests/broken_collectives.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests import broken_collectives
from tests.broken_collectives import FAULTS, GOOD
from tests.conftest import run_child
from tests.fake_plugins import install

pytestmark = pytest.mark.torch

CONFORM = """
import json, sys
from portagpu.suite import ConformOptions, Selection, conform
selection = Selection(only=tuple(sys.argv[1:]))
results = conform(ConformOptions(backend="broken", selection=selection)).results
print(json.dumps({each.id: [str(each.verdict), each.reason] for each in results}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """[verdict, reason] of each case on the broken backend, by id."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("child")
    source = Path(broken_collectives.__file__).read_text(encoding="utf-8")
    modules = {"portagpu_broken": source}
    install(site, "portagpu-broken", {"broken": "portagpu_broken:PLUGIN"}, modules)
    names = [name for name, _ in FAULTS.values()]
    ended = run_child(folder, "-c", CONFORM, *names, *GOOD, path=[site])
    judged: dict[str, list[str]] = json.loads(ended.ok())
    return judged


@pytest.mark.parametrize("fault", FAULTS)
def test_library_with_a_fault_fails_the_case_for_it(
    found: dict[str, list[str]], fault: str
) -> None:
    name, sentence = FAULTS[fault]
    verdict, reason = found[name]
    assert verdict == "FAIL", f"a library that {fault} is {verdict} in {name}: {reason}"
    assert sentence in reason, f"the sentence of {name} does not tell the fault: {reason}"


@pytest.mark.parametrize("name", GOOD)
def test_what_is_not_broken_passes(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == ["PASS", ""], f"{name} is {found[name]}"
