"""A plugin written for contract 1.x as an installed wheel, and old names in a fresh process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

OLD_PLUGIN = ROOT / "tests" / "support" / "contract_1_plugin"
"""``examples/third_party_backend`` as it was before the modules moved; its texts do not change."""

FRESH = """
import sys, warnings

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
before = list(sys.meta_path)
import portagpu
from portagpu import memory
added = [each for each in sys.meta_path if each not in before]
assert "portagpu._moved" not in sys.modules
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import portagpu.contract
    import portagpu.contract as again
    from portagpu.contract import Backend
from portagpu import plugin
names = {name: getattr(plugin, name) for name in plugin.__all__}
print(len(added), len(caught), len(names), Backend is names["Backend"] is portagpu.Backend)
print(sorted({"torch", "numpy", "pickle"} & set(sys.modules)))
print(caught[0].filename, str(caught[0].message))
try:
    import portagpu.text
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("flags", [[], ["-O"]], ids=["plain", "-O"])
def test_old_names_in_a_fresh_process(child: Callable[..., Child], flags: list[str]) -> None:
    out = child(*flags, "-c", FRESH).ok().splitlines()
    added, warned, names, same = out[0].split()
    assert (added, warned, same) == ("1", "1", "True")
    assert int(names) > 80
    assert out[1] == "[]", "a name of portagpu.plugin imports torch, or an old name pickle"
    assert out[2] == (
        "<string> portagpu.contract is portagpu.devices.contract now: "
        "a plugin imports from portagpu.plugin"
    )
    assert out[3] == (
        "portagpu.text was internal and is gone: a plugin imports from portagpu.plugin, and "
        "training code from portagpu"
    )


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
