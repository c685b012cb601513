"""``portagpu port run``: an unchanged script for GPUs runs here, and says what it asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.base.errors import Unsupported
from portagpu.train.port import bridge
from tests.conftest import ROOT
from tests.support import fake_torch
from tests.support.fake_cuda_programs import _GPU, _Usable
from tests.support.registry_state import forget, use_plugins

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backends")])
    environment = {**os.environ, "PYTHONPATH": paths, "PORTAGPU_BACKEND": "cpu"}
    # the folder of a program is on its path, as users have it
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_script_imports_it_and_a_library_must_not(tmp_path: Path) -> None:
    first = "import portagpu.bridge\nimport torch\nprint(torch.ones(2).cuda().sum().item())\n"
    (tmp_path / "script.py").write_text(first, encoding="utf-8")
    (tmp_path / "library.py").write_text("import portagpu.bridge\n", encoding="utf-8")
    assert run("script.py", folder=tmp_path).stdout == "2.0\n"
    refused = run("-c", "import library", folder=tmp_path)
    assert "portagpu.bridge is for scripts and does nothing in library" in refused.stderr
    assert "answers for GPUs" not in refused.stderr


def test_code_that_is_compiled_stays_one_graph(tmp_path: Path) -> None:
    """A graph in parts runs as without the compiler, whose bfloat16 rounds less often."""
    (tmp_path / "script.py").write_text(
        "import portagpu.bridge\nimport torch\n"
        "@torch.compile(fullgraph=True, backend='eager')\n"
        "def step(x):\n"
        "    y = torch.zeros(2, device='cuda') + x.cuda().bfloat16()\n"
        "    return y.to('cuda:0') @ x.to(0)\n"
        "print(step(torch.ones(2)).item())\n",
        encoding="utf-8",
    )
    done = run("script.py", folder=tmp_path)
    assert done.stdout == "2.0\n", done.stderr


def test_it_is_refused_where_torch_has_gpus_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch.install(monkeypatch, "cuda", [_GPU])
    forget(monkeypatch)
    use_plugins(monkeypatch, _Usable())
    with pytest.raises(Unsupported, match="run the program as it is"):
        bridge.activate()
    assert not bridge._is_active
