"""A plugin written for contract 1.x as an installed wheel, and old names in a fresh process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT, build_wheel, install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


OLD_PLUGIN = ROOT / "tests" / "support" / "contract_1_plugin"
"""``examples/third_party_backend`` as it was before the modules moved; its texts do not change."""


TRAINS = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, portagpu
    from portagpu.collectives import TopK, helpers
    from portagpu.kernels import cpp
    from portagpu.facts.formats.reader import read_text
    from portagpu.facts.vendors import vendors
    gpu = portagpu.backend("demo")
    masks = [vendors()["demo"].masks.name]
    printed = "board 0 at 0000:41:00.0: Demo One, DEMO-01, 61 C, not slowed, 3 pages retired"
    (reading,) = read_text(f"demo-smi 1.0\\n{printed}\\n")[0].readings
model = torch.nn.Linear(4, 1).to(gpu.device)
with gpu.autocast(enabled=False):
    model(torch.ones(2, 4, device=gpu.device)).sum().backward()
gpu.synchronize()
old = [str(each.message).partition(" is ")[0] for each in caught
       if each.category is DeprecationWarning and "portagpu" in str(each.message)]
print(json.dumps({"name": gpu.name, "contract": gpu.plugin.contract, "masks": masks,
                  "wait": dict(gpu.plugin.variables.one_by_one), "reading": reading.name,
                  "helpers": helpers.__name__,
                  "grad": model.weight.grad.tolist(), "warned": sorted(old)}))
"""


@pytest.mark.torch
def test_the_example_of_before_the_move_works_unchanged(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    wheel = build_wheel(OLD_PLUGIN, tmp_path / "wheel")
    site = install(wheel, tmp_path / "site")
    found: dict[str, Any] = json.loads(child("-c", TRAINS, path=[site]).ok())
    assert found.pop("warned") == [
        "portagpu.formats",
        "portagpu.readings",
        "portagpu.variables",
        "portagpu.vendors",
    ]
    assert found == {
        "name": "demo",
        "contract": [1, 1],
        "masks": ["demo"],
        "wait": {"DEMO_WAIT": "1"},
        "reading": "Demo One",
        "helpers": "portagpu.devices.collectives.helpers",
        "grad": [[2.0, 2.0, 2.0, 2.0]],
    }
