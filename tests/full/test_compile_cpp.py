"""The C++ kernels in ``portagpu compile``: routes, missing and bad compilers, the cache, Ctrl-C."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from portagpu.runs.results.run import Result, Verdict, read_json
from tests.process.test_compile_cpp import IDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


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
