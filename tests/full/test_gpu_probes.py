"""What the plugins make of NVML and AMD SMI: stand-ins for the modules, asked in real children."""

from __future__ import annotations

import pytest

from portagpu_rocm.plugin import RocmPlugin
from tests.process.test_gpu_probes import MODULES, PLUGINS, PYRSMI, both, here, rocm_readings, tree
from tests.support.gpu_trees import amd_gpu


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        # amdsmi 7.0.2 without its library
        ("raise KeyError('libamd_smi.so')", "libamd_smi.so"),
        ("raise AttributeError('libamd_smi.so: undefined symbol: amdsmi_get_x')", "amdsmi_get_x"),
        (
            "def amdsmi_init(): raise RuntimeError('Error code:\\n\\t34 | DRIVER_NOT_LOADED')",
            "DRIVER_NOT_LOADED",
        ),
        ("raise SystemExit(1)", "SystemExit"),
        ("import a_module_of_nobody", "a_module_of_nobody"),
    ],
    ids=["no library", "another version", "no driver", "exits", "incomplete"],
)
def test_pyrsmi_answers_where_amdsmi_does_not(stand_in, tmp_path, broken, reason):
    stand_in("amdsmi", broken)
    stand_in("pyrsmi.rocml", PYRSMI)
    gpus = (amd_gpu(0, pci="0000:c6:00.0"), amd_gpu(1, pci="0000:05:00.0"))
    found = RocmPlugin(tree(tmp_path, *gpus)).probe()
    far, near = found.readings
    assert (near.pci, near.memory_bytes, near.state.power_w) == ("0000:05:00.0", 206141652992, 137)
    assert far.memory_bytes is None, "-1 is an error and no size"
    (problem,) = found.problems
    assert problem.startswith("pyrsmi answers alone: amdsmi fails: "), problem
    assert reason in problem
    assert "\n" not in problem
    assert rocm_readings() == {"power_w": 137.0}, "not the second of pyrsmi's GPUs"


@both
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import os; os._exit(0)", "gave no answer"),
        ("import sys; sys.exit('no such thing')", "no such thing"),
        ("raise RuntimeError('Driver/library\\nversion mismatch')", "Driver/library version"),
    ],
    ids=["aborts", "crashes", "vanishes", "exits", "mismatch"],
)
def test_a_library_that_fails_is_one_problem(stand_in, tmp_path, kind, source, words):
    stand_in(MODULES[kind], source)
    stand_in("pyrsmi.rocml", "raise ImportError('no')")
    found = PLUGINS[kind](here(tmp_path, kind)).probe()
    assert found.readings == ()
    (problem,) = found.problems
    assert " does not answer: " in problem, problem
    assert words in problem, problem
    assert "\n" not in problem, "more than one line"
