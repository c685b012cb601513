"""The C++ kernels in ``portagpu compile``: routes, missing and bad compilers, the cache, Ctrl-C."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.base.plugins import install
from portagpu.cli import main
from portagpu.devices.discovery import toolchain_for
from portagpu.devices.machine_code import MachineCode, Toolchain
from portagpu.runs.results.run import Result, Verdict, read_json
from portagpu.suites.compile import kernel_jobs
from portagpu.suites.compile.run import CompileOptions, compile_kernels
from portagpu.train.kernels.cache import Cache
from portagpu.train.kernels.cpp import KERNELS
from portagpu.train.kernels.plan import VARIANTS
from tests.conftest import CHILD_LIMIT_S
from tests.support.fake_clang import write_clang
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.devices.machine_code import Compiler
    from tests.conftest import Child

IDS = [
    "warp_reduce[f32]",
    "warp_reduce[f64]",
    "warp_reduce[i32]",
    "warp_reduce[i64]",
    "warp_scan[f32]",
    "warp_scan[f64]",
    "warp_scan[i32]",
    "warp_scan[i64]",
    "ballot_rank",
    "block_reduce[f32]",
    "block_reduce[f64]",
    "block_reduce[i32]",
    "block_reduce[i64]",
    "histogram[i32]",
    "histogram[i64]",
]
CODE = MachineCode(
    wave_size=64,
    threads=256,
    registers=20,
    scalar_registers=20,
    spills=0,
    spill_unit="registers",
    scalar_spills=0,
    stack_bytes=0,
    matrix={},
)


def compilers(version: str, stamp: str, *archs: str) -> dict[str, Any]:
    """The answer of the child that is asked for them."""
    return {arch: {"name": "clang", "version": version, "stamp": stamp} for arch in archs}


FAKE = compilers("99.1.2", "a", "gfx906", "gfx942")


def good(job: Any) -> dict[str, Any]:
    """The answer of a worker to which nothing happens."""
    names = KERNELS[job["source"]] if job["kind"] == "cpp" else ()
    return {"codes": {name: asdict(CODE) for name in names}, "seconds": 1.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compilers that are here and workers that answer; the sources that were asked for."""
    sources: list[str] = []

    def ask_all(jobs: Any, on_answer: Any, **_: Any) -> None:
        for index, job in enumerate(jobs):
            sources.append(job.get("source", job.get("variant")))
            on_answer(index, good(job))

    monkeypatch.setattr("portagpu.suites.compile.run.ask_all", ask_all)
    monkeypatch.setattr(kernel_jobs, "call", lambda *_, **__: (FAKE, ""))
    return sources


def compiled(archs: Sequence[str], folder: Path | None = None) -> list[Result]:
    return compile_kernels(CompileOptions(archs=archs, cache=Cache(folder))).results


def test_every_function_has_a_result_with_an_id_of_its_own() -> None:
    names = [
        kernel_jobs.result_id(name, function)
        for name, functions in KERNELS.items()
        for function in functions
    ]
    assert names == IDS
    assert not set(names) & {variant.id for variant in VARIANTS}


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "gfx906", "gfx1030"])
def test_what_triton_does_not_build_for_is_skipped_once_with_the_reason(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    monkeypatch.setattr(kernel_jobs, "call", lambda *_, **__: (compilers("1", "a", arch), ""))
    triton, *others = compiled([arch])
    assert (triton.id, triton.verdict) == ("kernels/triton", Verdict.SKIP)
    assert "Triton 3.9" in triton.reason
    assert [each.id for each in others] == [f"kernels/{name}" for name in IDS]
    assert asked == list(KERNELS)


def test_missing_triton_is_said_once_and_the_others_are_built(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Compiler:
        raise MissingDependency(f"Triton is not installed: {install('compile')}")

    monkeypatch.setattr(kernel_jobs, "find_compiler", missing)
    triton, *others = compiled(["gfx942"])
    assert (triton.id, triton.verdict) == ("kernels/triton", Verdict.INCONCLUSIVE)
    assert install("compile") in triton.reason
    assert Counter(each.verdict for each in others) == {Verdict.PASS: len(IDS)}


@pytest.mark.parametrize(
    ("answer", "verdict", "said"),
    [
        (({"gfx906": "no clang is installed: install ROCm"}, ""), "INCONCLUSIVE", "install ROCm"),
        ((None, "it did not answer within 60 s"), "ERROR", "could not be asked: it did not answer"),
    ],
    ids=["missing", "hangs"],
)
def test_missing_compiler_of_cpp_is_one_result(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, answer: Any, verdict: str, said: str
) -> None:
    monkeypatch.setattr(kernel_jobs, "call", lambda *_, **__: answer)
    _, cpp = compiled(["gfx906"])
    assert (cpp.id, str(cpp.verdict)) == ("kernels/cpp", verdict)
    assert said in cpp.reason
    assert asked == []


class Bare(Toolchain):
    """A backend that knows Triton and no C++."""

    vendor = "amd"

    def triton_target(self, arch: str) -> tuple[str, int | str]:
        return "hip", arch

    def inspect(self, *_: Any, **__: Any) -> MachineCode:
        return CODE


def test_a_backend_without_cpp_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        def toolchain(self) -> Toolchain:
            return Bare()

    monkeypatch.setattr("portagpu.devices.discovery.plugin", lambda _: Plugin())
    monkeypatch.setattr(kernel_jobs, "check_readers", lambda: None)
    assert kernel_jobs.survey("rocm", ["gfx942"]) == {"gfx942": "the backend for amd builds no C++"}
    with pytest.raises(Unsupported, match="builds no C"):
        Bare().compile_cpp("", "gfx942")


def test_missing_readers_are_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    found = kernel_jobs.survey("rocm", ["gfx942"])
    assert install("compile") in found["gfx942"]


def test_what_is_known_of_the_real_compilers_is_known_without_compiling() -> None:
    for vendor, arch in (("nvidia", "sm_90"), ("amd", "gfx942")):
        found = toolchain_for(vendor)
        assert found is not None
        known = found[1].cpp_compilers([arch])[arch]
        if isinstance(known, str):
            assert "install" in known
        else:
            assert re.fullmatch(r"(NVRTC|clang) [\d.]+", str(known))
            assert known.stamp
            assert found[1].cpp_compilers([arch])[arch] == known


# the cache


def test_what_was_built_is_kept_by_source_and_compiler(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = compiled(["gfx906"], tmp_path)
    assert asked == list(KERNELS)
    asked.clear()
    again = compiled(["gfx906"], tmp_path)
    assert asked == []
    assert [r.extra.get("cached") for r in again[1:]] == [True] * len(IDS)
    assert [r.value for r in again] == [r.value for r in first]
    real = kernel_jobs.read_source
    monkeypatch.setattr(
        kernel_jobs, "read_source", lambda name: real(name) + "//" * (name == "histogram")
    )
    compiled(["gfx906"], tmp_path)
    assert asked == ["histogram"]
    asked.clear()
    monkeypatch.setattr(
        kernel_jobs,
        "call",
        lambda *_, **__: (compilers("99", "b", "gfx906"), ""),
    )
    compiled(["gfx906"], tmp_path)
    assert asked == list(KERNELS)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: text.replace('"registers": 20', '"registers": "20"'),
        lambda text: text.replace('"stack_bytes": 0', '"stack": 0'),
        lambda text: text.replace('"matrix": {}', '"matrix": {"a": "b"}'),
        lambda text: text.replace('"spills": 0', '"spills": null'),
        lambda text: text.replace("row_sum_f32", "row_sum_f16"),
        lambda text: text.replace('"codes"', '"code"'),
    ],
)
def test_kept_files_of_another_form_are_built_again(
    asked: list[str], tmp_path: Path, damage: Callable[[str], str]
) -> None:
    compiled(["gfx906"], tmp_path)
    (file,) = [each for each in tmp_path.iterdir() if "row_sum_f32" in each.read_text("utf-8")]
    text = file.read_text("utf-8")
    assert damage(text) != text
    file.write_text(damage(text), "utf-8")
    asked.clear()
    results = compiled(["gfx906"], tmp_path)
    assert asked == ["warp_reduce"]
    assert Counter(each.verdict for each in results[1:]) == {Verdict.PASS: len(IDS)}


def test_a_folder_that_cannot_be_written_keeps_nothing_and_says_so(
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["compile", "--arch", "gfx906"]) == 0
    assert "results are not cached: cannot write" in capsys.readouterr().out


# bad compilers, in real workers


needs_readers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("elftools", "msgpack")),
    reason="what reads machine code is not installed: pip install 'portagpu[compile]'",
)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path with one folder, for a clang that stands in."""
    if Path("/opt/rocm").exists():
        pytest.skip("ROCm is installed, whose clang comes first")
    for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@needs_readers
def test_an_interruption_leaves_no_compiler_running(
    only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, out = tmp_path / "pids", tmp_path / "result.json"
    write_clang(only, f"echo $$ >> {pids}; exec /bin/sleep 600")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    verb = subprocess.Popen(
        [sys.executable, "-m", "portagpu", "compile", "--arch", "gfx906", "--json", str(out)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        begun = lambda: pids.exists() and pids.read_text().endswith("\n")  # noqa: E731
        wait_until(lambda: begun() or verb.poll() is not None, "no compiler was started")
        assert begun(), verb.communicate()[0]
        verb.send_signal(signal.SIGINT)
        verb.communicate(timeout=CHILD_LIMIT_S)
    finally:
        verb.kill()
    assert verb.returncode == 130
    assert read_json(out).info.interrupted
    for pid in map(int, pids.read_text().split()):
        assert not _runs(pid), f"{pid} still runs"


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_nothing_is_imported_before_it_is_needed(child: Callable[..., Child]) -> None:
    script = """
import json, sys
import portagpu.train.kernels.cpp
first = set(sys.modules)
import portagpu.suites.compile, portagpu.suites.compile.worker
second = set(sys.modules)
print(json.dumps([sorted(first), sorted(second)]))
"""
    first, second = json.loads(child("-c", script).ok())
    assert not [name for name in first if name.startswith("portagpu.suites.compile")]
    for name in ("torch", "triton", "portagpu_cuda_build", "portagpu_rocm_build"):
        assert name not in second
