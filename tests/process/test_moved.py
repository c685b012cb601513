"""Old names in a fresh process; ``tests/full`` has a plugin written for contract 1.x as a wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


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
import portagpu.kernels
assert "triton" not in sys.modules and "matmul" in dir(portagpu.kernels)
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
