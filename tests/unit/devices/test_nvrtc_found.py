"""Which of the libraries that may be NVRTC is used: the first that loads and knows the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu_cuda_build import nvrtc

KNOWN = {"/wheel/libnvrtc.so.13": (90, 100), "/toolkit/libnvrtc.so.12": (70, 90)}


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three places, of which the first cannot be loaded."""

    def load(path: str) -> str:
        if path not in KNOWN:
            raise OSError(f"{path}: cannot open shared object file")
        return path

    def known(library: str, path: str) -> Any:
        assert library == path
        return SimpleNamespace(path=path, name=f"NVRTC {path[-2:]}.0", architectures=KNOWN[path])

    monkeypatch.setattr(nvrtc.ctypes, "CDLL", load)
    monkeypatch.setattr(nvrtc, "_Nvrtc", known)
    monkeypatch.setattr(nvrtc, "libraries", lambda _: ["/gone/libnvrtc.so.13", *KNOWN])


def test_each_that_loads_is_tried_in_their_order() -> None:
    assert [each.path for each in nvrtc._loadable()] == list(KNOWN)


def test_the_first_that_knows_the_architecture_builds() -> None:
    for arch, path in (("sm_90", "/wheel/libnvrtc.so.13"), ("sm_70", "/toolkit/libnvrtc.so.12")):
        found: Any = nvrtc._builder_for(nvrtc._loadable(), arch)
        assert found.path == path, arch


BOTH = "NVRTC 13.0 and NVRTC 12.0 cannot build for"
NEW = "pip install nvidia-cuda-nvrtc (CUDA 13)"
OLD = "pip install nvidia-cuda-nvrtc-cu12 (CUDA 12), which may be installed next to one of CUDA 13"


@pytest.mark.parametrize(
    ("arch", "there", "said"),
    [
        # what is older than all that they know was dropped, and for what is newer there is a newer
        ("sm_60", [*KNOWN], f"{BOTH} sm_60: {OLD}"),
        ("sm_80", [*KNOWN], f"{BOTH} sm_80: {NEW}"),
        ("sm_120", [*KNOWN], f"{BOTH} sm_120: {NEW}"),
        ("sm_90", ["gone"], f"NVRTC is not installed: {NEW}, or for what that has dropped {OLD}"),
    ],
)
def test_none_that_knows_it_says_what_to_install(
    arch: str, there: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "libraries", lambda _: there)
    assert nvrtc._builder_for(nvrtc._loadable(), arch) == said
