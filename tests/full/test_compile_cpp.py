"""The C++ kernels in ``portagpu compile``: routes, missing and bad compilers, the cache, Ctrl-C."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.runs.results.run import Result, Verdict, read_json
from portagpu.suites.compile.run import CompileOptions, compile_kernels
from portagpu.train.kernels.cpp import KERNELS
from tests.process.test_compile_cpp import IDS, needs_readers
from tests.process.test_compile_cpp import only as only
from tests.support.fake_clang import write_clang

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


BAD: Final = {
    "refuses": (
        "echo kernel.cpp:7:1: error: what is this >&2; echo 1 error generated. >&2; exit 1",
        "FAIL",
        "clang 99.1.2 did not compile it: .* error: what is this$",
    ),
    "dies": ("kill -9 $$", "ERROR", "clang 99.1.2 ended with exit code -9: it said nothing"),
    "crashes": ("echo LLVM ERROR: no >&2; exit 70", "ERROR", "exit code 70: LLVM ERROR: no"),
    "kills": ("kill -9 $PPID", "ERROR", "the compiler's process died of SIGKILL"),
    "prints": ("echo '{\"codes\": {}}'; exit 0", "ERROR", "clang 99.1.2 wrote no code"),
    "garbage": (
        "for last; do :; done; echo no code > $last; exit 0",
        "ERROR",
        "the machine code cannot be read: not a 64-bit little-endian ELF file",
    ),
    "hangs": (
        "exec /bin/sleep 600",
        "ERROR",
        "the compiler's process did not answer within 5 s",
    ),
}
"""What a compiler does, the verdict, and its reason."""


def test_real_sources_are_built_and_kept(child: Callable[..., Child], tmp_path: Path) -> None:
    """For architectures that Triton does not build for, where a compiler is installed."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    for cached in (False, True):
        file = tmp_path / f"{cached}.json"
        words = ("--arch", "sm_75", "--arch", "gfx1030", "--json", str(file))
        ended = child("-m", "portagpu", "compile", *words, environment=environment)
        run = read_json(file)
        by_arch: dict[str | None, list[Result]] = {}
        for result in run.results:
            by_arch.setdefault(result.device, []).append(result)
        for results in by_arch.values():
            cpp = results[1:]
            if cpp[0].verdict is Verdict.INCONCLUSIVE:
                assert (len(cpp), ended.code) == (1, 3)
                assert "install" in cpp[0].reason
                continue
            assert [each.id for each in cpp] == [f"kernels/{name}" for name in IDS]
            assert all(each.verdict is Verdict.PASS for each in cpp), [r.reason for r in cpp]
            assert all(each.extra["cached"] is cached for each in cpp)
            (name,) = {each.extra["compiler"] for each in cpp}
            kind, version = name.split()
            assert run.info.versions[kind.lower()] == version


@needs_readers
@pytest.mark.parametrize(
    "acts", [("refuses", "dies", "kills", "crashes", "prints"), ("garbage", "hangs")], ids=" ".join
)
def test_a_bad_compiler_is_a_result_of_every_function(only: Path, acts: tuple[str, ...]) -> None:
    """Each source has another act, so that none of them is in the way of the next one."""
    of_source = dict(zip(KERNELS, itertools.cycle(acts), strict=False))
    grep = shutil.which("grep", path=os.defpath)
    cases = [
        f'if {grep} -qw {KERNELS[name][0]} "$source"; then {BAD[act][0]}; fi'
        for name, act in of_source.items()
    ]
    find = 'for each; do case "$each" in *.cpp) source=$each ;; esac; done'
    write_clang(only, "; ".join([find, *cases]))
    # allowed: what it limits never ends
    found = compile_kernels(CompileOptions(archs=["gfx906"], limit_s=5)).results
    assert [each.id for each in found[1:]] == [f"kernels/{name}" for name in IDS]
    expected = [BAD[act] for name, act in of_source.items() for _ in range(len(KERNELS[name]))]
    for each, (_, verdict, said) in zip(found[1:], expected, strict=True):
        assert str(each.verdict) == verdict, each.reason
        assert re.search(said, each.reason), each.reason
