"""fp8 on a CPU is stated as it runs, whatever the CPU and whatever oneDNN may use of it.

torch asks its own copy of cpuinfo whether there is AMX-INT8, and oneDNN asks the processor. A child
process that sets torch's copy (c10 exports it) takes the way of a CPU with AMX on any x86-64, where
oneDNN then runs what this processor and ``ONEDNN_MAX_CPU_ISA`` leave it."""

from __future__ import annotations

import json
import platform
import textwrap

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from portagpu.devices.precision.formats import FLAVOURS, FP8_NAMES
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytestmark = pytest.mark.torch


BELOW_FP16 = ("SSE41", "AVX2", "AVX512_CORE")
"""Values of oneDNN's variable with which it multiplies no fp8."""


JUDGED = """
    import ctypes, json, sys
    from pathlib import Path

    import pytest
    import torch

    from portagpu_cpu import identity
    from tests.support import suite_harness
    from tests.process import test_cpu_fp8

    def pretend(unit):
        '''Set the unit in torch's copy of cpuinfo, whose fields c10 does not name.'''
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        fields = (ctypes.c_bool * 64).in_dll(library, "cpuinfo_isa")
        ask = torch._C._cpu._get_cpu_capability
        before = ask()
        for place in range(len(fields)):
            if not before[unit] and not fields[place]:
                fields[place] = True
                changed = [name for name, has in ask().items() if has != before[name]]
                if changed == [unit]:
                    return
                fields[place] = False
        assert before[unit], f"nothing sets {unit}"

    def found():
        with pytest.MonkeyPatch.context() as patch:
            gpu = suite_harness.open_device(patch)
            stated = {name: gpu.precision.support(getattr(torch, name)) for name in names}
            results = [suite_harness.run(gpu, f"{case}[{name}]")
                       for case in test_cpu_fp8.CASES for name in names]
        wrong = [f"{each.id} is {each.verdict}: {each.reason}" for each in results
                 if each.verdict not in ("PASS", "SKIP")]
        return {"stated": stated, "wrong": wrong}

    names = test_cpu_fp8.FP8_NAMES
    seen = {"unit": torch._C._cpu._get_cpu_capability().get("amx_int8"), "here": found()}
    if seen["unit"] is not None:
        pretend("amx_int8")
        identity._works_with.cache_clear()
        seen["amx"] = found()
        torch.backends.mkldnn.enabled = False
        seen["switched off"] = found()
        torch.backends.mkldnn.enabled = True
        identity._multiplies = lambda dtype: True
        identity._works_with.cache_clear()
        seen["taken on trust"] = found()
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("isa", ["", *BELOW_FP16, "AVX512_CORE_AMX"])
def test_every_instruction_set_is_stated_as_it_runs(child: Callable[..., Child], isa: str) -> None:
    environment = {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
    code = textwrap.dedent(JUDGED)
    seen = json.loads(child("-c", code, path=[ROOT], environment=environment).ok())
    assert seen["here"]["wrong"] == []
    emulated = dict.fromkeys(FP8_NAMES, "emulated")
    if not seen["unit"]:
        assert seen["here"]["stated"] == emulated, "torch multiplies without oneDNN here"
    if platform.machine() != "x86_64":
        return
    assert seen["amx"]["wrong"] == [], f"as on a CPU with AMX, {isa}"
    stated = seen["amx"]["stated"]
    assert {stated[name] for name in FLAVOURS["fnuz"]} == {"storage"}, "torch hands oneDNN FNUZ"
    if isa in BELOW_FP16:
        assert set(stated.values()) == {"storage"}, f"oneDNN multiplies fp8 with {isa}"
    assert seen["switched off"] == {"stated": emulated, "wrong": []}
    wrong = seen["taken on trust"]["wrong"]
    assert len(wrong) == list(stated.values()).count("storage"), (
        f"a wrong statement passed: {wrong}"
    )
    assert all("stated as emulated and ran as storage" in each for each in wrong)
