"""``portagpu compile``: readers of machine code, verdicts, the cache, compilers that misbehave."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.errors import MissingDependency, OutputError, TargetNotFound
from portagpu.base.plugins import install
from portagpu.cli import main
from portagpu.devices import machine_code as compilers
from portagpu.devices.discovery import toolchain_for
from portagpu.devices.machine_code import CodeError, MachineCode
from portagpu.facts.targets import identify, load_target
from portagpu.runs.results.run import Result, Verdict, read_json
from portagpu.suites.compile import run
from portagpu.suites.compile.judge import Job, judge_code, unjudged_result
from portagpu.suites.compile.kernel_jobs import skip_reason
from portagpu.suites.compile.run import CompileOptions, ask_all, compile_kernels
from portagpu.train.kernels.plan import VARIANTS, variants_by_id
from portagpu_cuda_build import machine_code as cuda
from portagpu_rocm_build import machine_code as rocm

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.devices.machine_code import UnitReading
    from portagpu.facts.targets import Target

VENDORS: Final = {"sm": "nvidia", "gf": "amd"}

USAGE: Final = """
Fatbin elf code:
 Resource usage:
 Common:
  GLOBAL:0
 Function my_kernel:
  REG:168 STACK:24 SHARED:0 LOCAL:8 CONSTANT[0]:592 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS: Final = """
.text.my_kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, !UPT ;
        /*0040*/                   UTCQMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*0050*/                   IMMA.16832.S8.S8.SAT R4, R8.ROW, R12.COL, R4 ;
        /*0060*/                   FFMA R4, R5, R6, R7 ;
"""
ASSEMBLY: Final = """
my_kernel:
	v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]
	v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]
	v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
	v_fma_f32 v0, v1, v2, v3
	; v_mfma_f32_4x4x4_f16 in a comment
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
    .max_flat_workgroup_size: 256
    .private_segment_fixed_size: 132
    .sgpr_count:     42
    .sgpr_spill_count: 3
    .vgpr_count:     214
    .vgpr_spill_count: 34
    .wavefront_size: 64
...
	.end_amdgpu_metadata
"""


def target_of(arch: str) -> Target:
    found = identify(VENDORS[arch[:2]], arch, None)
    assert found is not None
    return found


def code(**changes: Any) -> MachineCode:
    """The code of a good fp16 product for sm_90, changed."""
    good = MachineCode(
        wave_size=32,
        threads=256,
        registers=108,
        spills=0,
        spill_unit="B",
        shared_bytes=32768,
        matrix={"HGMMA.64x128x16.F32": 2},
    )
    return dataclasses.replace(good, **changes)


def judge(
    given: MachineCode,
    target: Target | None = None,
    matrix: str | None = "fp16",
    reading: UnitReading | None = None,
) -> Result:
    return judge_code(
        "matmul[float16]",
        target or target_of("sm_90"),
        given,
        matrix=matrix,
        compiler="Triton 3.9.0",
        duration_s=0.5,
        extra={},
        reading=reading,
    )


# readers


def test_cubin_usage_is_registers_and_stack() -> None:
    assert cuda.read_usage(USAGE) == {"REG": 168, "STACK": 24, "LOCAL": 8}


@pytest.mark.parametrize("text", ["", USAGE + USAGE, USAGE.replace("STACK:24", "")])
def test_unclear_usage_is_refused(text: str) -> None:
    with pytest.raises(CodeError):
        cuda.read_usage(text)


def test_matrix_instructions_of_sass_are_counted_with_their_types() -> None:
    assert cuda.read_matrix(SASS) == {
        "HMMA.16816.F32.BF16": 2,
        "HGMMA.64x128x16.F32": 1,
        "UTCQMMA": 1,
        "IMMA.16832.S8.S8.SAT": 1,
    }


def test_amd_metadata_and_instructions() -> None:
    counts = rocm.read_metadata(ASSEMBLY)
    assert (counts["vgpr_count"], counts["wavefront_size"]) == (214, 64)
    found = rocm.read_matrix(ASSEMBLY)
    assert found == {"v_mfma_f32_32x32x8_f16": 2, "v_wmma_f32_16x16x16_f16": 1}
    built = rocm.TOOLCHAIN.inspect({"amdgcn": ASSEMBLY, "hsaco": b"x"}, 256, 4, matrix=True)
    # 34 registers of 4 B are more than the 132 B of scratch
    assert (built.spills, built.spill_unit, built.scalar_spills) == (136, "B", 3)
    assert (built.registers, built.accumulators, built.scalar_registers) == (214, 0, 42)


def test_amd_code_for_blocks_of_another_size_is_refused() -> None:
    with pytest.raises(CodeError, match="not made for blocks of 128 threads"):
        rocm.TOOLCHAIN.inspect({"amdgcn": ASSEMBLY, "hsaco": b"x"}, 128, 2, matrix=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ASSEMBLY.replace(".end_amdgpu_metadata", ""),
        ASSEMBLY.replace(".wavefront_size: 64", ""),
        ASSEMBLY.replace(".vgpr_spill_count: 34", ".vgpr_spill_count: many"),
        ASSEMBLY.replace("...\n", "  - .wavefront_size: 64\n...\n"),
    ],
)
def test_damaged_metadata_is_refused(text: str) -> None:
    with pytest.raises(CodeError):
        rocm.read_metadata(text)


@pytest.mark.parametrize("toolchain", [cuda.TOOLCHAIN, rocm.TOOLCHAIN])
def test_code_without_a_binary_is_refused(toolchain: Any) -> None:
    with pytest.raises(CodeError):
        toolchain.inspect({"ptx": "", "amdgcn": ASSEMBLY}, 256, 4, matrix=True)


def test_names_for_triton() -> None:
    assert cuda.TOOLCHAIN.triton_target("sm_90") == ("cuda", 90)
    assert rocm.TOOLCHAIN.triton_target("gfx942") == ("hip", "gfx942")


UNIT_SASS = """
        /*0030*/                   S2R R10, SR_CTAID.X ;
        /*0090*/                   CS2R R14, SRZ ;
        /*15e0*/              @!P0 S2R R53, SR_TID.X ;
        /*1ba0*/                   S2R R0, SR_VIRTUALSMID ;
        /*1bb0*/                   S2UR UR4, SR_VIRTUALSMID ;
"""
UNIT_ASSEMBLY = """
\ts_getreg_b32 s0, hwreg(HW_REG_XCC_ID, 0, 4)
\ts_getreg_b32 s17, hwreg(HW_REG_HW_ID, 8, 7)
\ts_getreg_b32 s2, hwreg(HW_REG_MODE, 4, 4)
\ts_getreg_b32 s2, hwreg(HW_REG_HW_ID, 8, 7)
"""


def test_reads_of_the_unit_are_counted_by_register() -> None:
    assert cuda.read_units(UNIT_SASS) == {"SR_VIRTUALSMID": 2}
    assert rocm.read_units(UNIT_ASSEMBLY) == {
        "hwreg(HW_REG_XCC_ID, 0, 4)": 1,
        "hwreg(HW_REG_HW_ID, 8, 7)": 2,
    }
    assert cuda.read_units(SASS) == rocm.read_units(ASSEMBLY) == {}


def test_each_architecture_with_triton_has_a_reading_that_inspection_finds() -> None:
    for target in CompileOptions().targets():
        if "triton" in (target.value("compile.routes") or ()):
            found = toolchain_for(target.vendor)
            assert found is not None
            toolchain = found[1]
            reading = toolchain.unit_reading(target.arch.name)
            assert reading is not None, target.arch.name
            assert len(reading.assembly) == len(reading.registers) <= 2
            assert reading.source
            if target.vendor == "amd":
                text = "".join(f"\t{each}\n" for each in reading.assembly).replace("$0", "s0")
                assert rocm.read_units(text) == dict.fromkeys(reading.registers, 1)


# verdicts


def test_good_code_passes_and_says_what_it_does_not_show() -> None:
    result = judge(code())
    assert result.verdict is Verdict.PASS
    assert [str(badge) for badge in result.evidence] == ["compiled"]
    assert (result.value, result.unit, result.device) == (108, "registers", "sm_90")
    assert "nothing was executed" in result.does_not_show
    assert result.extra["compiler"] == "Triton 3.9.0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spills": 8}, "spill 8 B, expected 0"),
        ({"spills": 2, "spill_unit": "registers"}, "spill 2 registers, expected 0"),
        ({"scalar_spills": 1}, "scalar spill 1 registers"),
        ({"stack_bytes": 16}, "stack 16 B, expected 0"),
        ({"registers": 256}, "registers 256 registers, expected 0 to 255"),
        ({"registers": 256}, "occupancy 0 blocks, expected 1 to any"),
        ({"threads": 1024}, "occupancy 0 blocks, expected 1 to any"),
        ({"wave_size": 64}, "wave size 64 threads, expected 32 (exec.wave_size_default)"),
        ({"shared_bytes": 232449}, "shared memory 232449 B, expected 0 to 232448"),
        ({"matrix": {}}, "matrix 0 instructions, expected 1 to any"),
        ({"matrix": {"HMMA.16816.F32": 8}}, "the code has HMMA.16816.F32"),
        ({"matrix": {"HGMMA.64x128x16.F32": 1, "HMMA.16816.F32": 1}}, "other matrix 1"),
        ({"matrix": {"HGMMA.64x128x16.F32.BF16": 2}}, "matrix 0 instructions"),
    ],
)
def test_what_is_wrong_fails_with_its_number(changes: dict[str, Any], said: str) -> None:
    result = judge(code(**changes))
    assert result.verdict is Verdict.FAIL
    assert said in result.reason


READING = rocm.TOOLCHAIN.unit_reading("gfx942")
READ_ONCE = {"hwreg(HW_REG_XCC_ID, 0, 4)": 1, "hwreg(HW_REG_HW_ID, 8, 7)": 1}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (READ_ONCE, ""),
        ({}, "unit reads 0 instructions, expected 2"),
        ({"hwreg(HW_REG_XCC_ID, 0, 4)": 2}, "unit reads 1 instructions, expected 2"),
        ({**READ_ONCE, "hwreg(HW_REG_HW_ID, 8, 7)": 2}, "other unit reads 1 instructions"),
        ({**READ_ONCE, "hwreg(HW_REG_HW_ID)": 1}, "the code has hwreg(HW_REG_HW_ID)"),
    ],
)
def test_the_unit_is_read_once_and_in_no_other_way(found: dict[str, int], said: str) -> None:
    result = judge(code(unit_reads=found), reading=READING)
    assert (result.verdict is Verdict.PASS) == (not said), result.reason
    assert said in result.reason
    names = [each["name"] for each in result.extra["measures"]]
    assert names[-2:] == ["unit reads", "other unit reads"]


def test_a_kernel_that_reads_units_is_skipped_where_no_document_has_them() -> None:
    class Undocumented(type(rocm.TOOLCHAIN)):
        def unit_reading(self, arch: str) -> None:
            return None

    variant, target = variants_by_id()["product_by_unit[float16]"], target_of("gfx942")
    assert skip_reason(variant, target, rocm.TOOLCHAIN) == ""
    said = skip_reason(variant, target, Undocumented())
    assert said == "no document says how code reads its hardware unit on gfx942"
    assert skip_reason(variants_by_id()["matmul[float16]"], target, Undocumented()) == ""


def test_what_no_fact_judges_is_unverified() -> None:
    bare = dataclasses.replace(
        target_of("sm_90"),
        facts={k: v for k, v in target_of("sm_90").facts.items() if not k.startswith("compile.")},
    )
    result = judge(code(), bare)
    assert result.verdict is Verdict.UNVERIFIED
    assert "matrix" in result.reason


def test_occupancy_is_of_the_rule_for_what_the_code_takes() -> None:
    result = judge(code())
    # 112 registers x 256 threads: two blocks of 8 warps, of 64
    assert result.extra["occupancy"] == 0.25
    (measure,) = [each for each in result.extra["measures"] if each["name"] == "occupancy"]
    assert (measure["value"], measure["unit"]) == (2, "blocks")


def test_occupancy_that_is_not_known_is_unverified() -> None:
    target = target_of("sm_90")
    ruleless = {k: v for k, v in target.facts.items() if k != "exec.occupancy_rule"}
    for result in (
        judge(code(threads=None)),
        judge(code(), dataclasses.replace(target, facts=ruleless)),
    ):
        assert result.verdict is Verdict.UNVERIFIED
        assert "nothing to judge occupancy by" in result.reason
        assert result.extra["occupancy"] is None


@pytest.mark.parametrize(
    ("arch", "dtype", "said"),
    [
        ("sm_80", "float8_e4m3fn", "matrix.dtypes has fp64, tf32, fp16, bf16, int8"),
        ("gfx90a", "float8_e4m3fnuz", "gfx90a has no fp8 matrix unit"),
        ("gfx1100", "float8_e5m2", "gfx1100 has no fp8 matrix unit"),
        ("gfx942", "float8_e4m3fn", "matrix.fp8_flavour is fnuz, not ocp"),
        ("gfx950", "float8_e4m3fnuz", "matrix.fp8_flavour is ocp, not fnuz"),
        ("gfx942", "float8_e4m3fnuz", ""),
        ("sm_89", "float8_e4m3fn", ""),
        ("sm_80", "int8", ""),
    ],
)
def test_a_dtype_that_an_architecture_lacks_is_named_by_its_fact(
    arch: str, dtype: str, said: str
) -> None:
    why = variants_by_id()[f"matmul[{dtype}]"].why_not(target_of(arch))
    assert said in why
    assert bool(why) == bool(said)


def test_every_route_has_a_pattern_for_each_product() -> None:
    for target in CompileOptions().targets():
        if "triton" in (target.value("compile.routes") or ()):
            for variant in VARIANTS:
                if variant.matrix and not variant.why_not(target):
                    assert target.value(f"compile.matrix.{variant.matrix}"), (target.id, variant.id)


def test_every_gpu_has_a_route_and_says_why_triton_is_none() -> None:
    for target in CompileOptions().targets():
        if target.vendor != "cpu":
            routes = target.value("compile.routes")
            assert "cpp" in routes
            assert ("triton" in routes) != bool(target.value("compile.without")), target.id


def test_architectures_are_in_a_stable_order() -> None:
    names = [target.arch.name for target in CompileOptions().targets()]
    assert names.index("sm_90") < names.index("sm_100") < names.index("sm_120")
    assert names.index("gfx942") < names.index("gfx950") < names.index("gfx1100")


def test_architectures_are_known_without_a_product_and_by_other_spellings() -> None:
    assert "gfx1030" in [target.arch.name for target in CompileOptions().targets()]
    (target,) = CompileOptions(archs=["sm_90a", "sm_90"]).targets()
    assert target.arch.name == "sm_90"


def test_unknown_architecture_offers_the_closest() -> None:
    with pytest.raises(TargetNotFound, match=r"did you mean .*gfx942"):
        CompileOptions(archs=["gfx943"]).targets()


@pytest.mark.parametrize(
    "changes",
    [
        {"registers": -5},
        {"registers": 10**400},
        {"spill_unit": "x"},
        {"matrix": {"HMMA": -1}},
        {"matrix": {"HMMA": 0}},
    ],
)
def test_counts_that_no_code_has_are_not_machine_code(changes: dict[str, Any]) -> None:
    stated = dataclasses.asdict(code())
    assert MachineCode.from_json(stated) is not None
    assert MachineCode.from_json({**stated, **changes}) is None


# compilers


def fake_triton(folder: Path, text: str | None) -> None:
    (folder / "triton").mkdir()
    if text is not None:
        (folder / "triton" / "__init__.py").write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__version__ = '4.0.1'\n", r"Triton 4\.0\.1 is installed, .* written for Triton 3"),
        ("__version__ = '2.1.0'\n", r"Triton 2\.1\.0 is installed"),
        ("", "states no version"),
        (None, "Triton is not installed"),
    ],
)
def test_a_compiler_that_does_not_fit_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, said: str
) -> None:
    fake_triton(tmp_path, text)
    # a folder without __init__.py is only found where no real one is
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "triton", raising=False)
    with pytest.raises(MissingDependency, match=said) as caught:
        compilers.find_compiler()
    assert install("compile") in str(caught.value)


def test_a_cpu_claims_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert main(["compile", "--target", "cpu-x86-64", "--json", str(file)]) == 3
    assert [r.verdict for r in read_json(file).results] == [Verdict.SKIP]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (["copy"], ["kernels/copy"]),
        (["kernels/sum*", "copy"], ["kernels/copy", "kernels/sum", "kernels/sum[int8]"]),
        (["*[int8]"], ["kernels/sum[int8]"]),
        ([], ["kernels/copy", "kernels/sum", "kernels/sum[int8]"]),
    ],
)
def test_only_builds_what_fits(
    only: list[str], ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target("nvidia-h200-sxm")
    job = Job(
        name="sums",
        target=target,
        compiler=compilers.Compiler("fake", "1.0", ""),
        request={},
        key="",
        ids={"first": "sum", "second": "sum[int8]"},
    )
    entries = [unjudged_result("copy", target, Verdict.SKIP, "for the test"), job]
    monkeypatch.setattr(run, "_entries", lambda targets: entries)
    asked: list[Any] = []

    def answer(jobs: list[Any], on_answer: Any, **_: Any) -> None:
        asked.extend(jobs)
        for index in range(len(jobs)):
            on_answer(index, {"problem": "no compiler in this test", "unread": False})

    monkeypatch.setattr(run, "ask_all", answer)
    found = compile_kernels(CompileOptions(archs=["sm_90"], only=only))
    assert [each.id for each in found.results] == ids
    assert len(asked) == any("sum" in each for each in ids)


def test_a_kernel_that_does_not_exist_offers_the_closest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = unjudged_result("matmul[int8]", load_target("cpu-x86-64"), Verdict.SKIP, "a CPU")
    monkeypatch.setattr(run, "_entries", lambda targets: [skipped])
    assert main(["compile", "--target", "cpu-x86-64", "--only", "matmull"]) == 2
    assert "there is no kernel 'matmull': did you mean 'matmul[int8]'?" in capsys.readouterr().err


WORKER: Final = """
import os, sys, time
from portagpu.base.subprocesses import parent_channel
channel = parent_channel()
while (request := channel.receive()) is not None:
    job = request["job"]
    print("noise")
    if job == "hang":
        time.sleep(600)
    if job == "abort":
        print("LLVM ERROR: cannot select", file=sys.stderr, flush=True)
        os.abort()
    if job == "leave":
        sys.exit(7)
    if job == "half":
        os.write(channel.writer, b'{"half')
        os._exit(0)
    if job == "garbage":
        os.write(channel.writer, b"\\xff noise\\n")
        time.sleep(600)
    channel.send({"did": job})
"""


def test_a_compiler_that_dies_or_hangs_harms_no_other_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fake_worker.py").write_text(WORKER, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = ["a", "abort", "b", "hang", "c", "leave", "half", "garbage", "d"]
    answers: dict[int, dict[str, Any]] = {}
    started: list[int] = []
    ask_all(
        [{"job": job} for job in jobs],
        answers.__setitem__,
        on_start=started.append,
        module="fake_worker",
        limit_s=3,  # allowed: what it limits never ends
    )
    assert sorted(started) == list(range(len(jobs)))
    said = {job: answers[at] for at, job in enumerate(jobs)}
    assert [said[job] for job in "abcd"] == [{"did": job} for job in "abcd"]
    assert "died of SIGABRT: LLVM ERROR: cannot select" in said["abort"]["problem"]
    assert "did not answer within 3 s" in said["hang"]["problem"]
    assert "ended with status 7" in said["leave"]["problem"]
    assert "gave no answer" in said["half"]["problem"]
    assert "broke: sent what is not a message: � noise" in said["garbage"]["problem"]
    assert all(said[job]["unread"] for job in ("abort", "hang", "leave", "half", "garbage"))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"codes": 7},
        {"codes": [1]},
        {"codes": {"softmax": 3}},
        {"seconds": -1},
        {"seconds": math.nan},
        {"seconds": "x", "problem": ["odd"]},
    ],
    ids=str,
)
def test_an_answer_of_another_shape_is_an_error_of_its_job(given: dict[str, Any]) -> None:
    target = load_target("nvidia-h200-sxm")
    compiler = compilers.Compiler("fake", "1.0", "")
    job = Job(
        name="softmax",
        target=target,
        compiler=compiler,
        request={},
        key="",
        ids={"softmax": "softmax"},
    )
    (found,) = job.results(given, cached=False)
    assert (found.id, found.verdict, found.evidence) == ("kernels/softmax", Verdict.ERROR, ())
    assert found.duration_s == 0


def test_variables_that_change_code_do_not_reach_the_compilers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker = "import os\nfrom portagpu.base.subprocesses import parent_channel\n"
    worker += "channel = parent_channel()\n"
    worker += "while channel.receive(): channel.send(dict(os.environ))\n"
    (tmp_path / "fake_worker.py").write_text(worker, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    changing = {"PTXAS_OPTIONS": "-O0", "USE_IR_LOC": "ttir", "TRITON_INTERPRET": "1"}
    changing |= dict.fromkeys(
        ("DISABLE_PTXAS_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "NVPTX_ENABLE_DUMP"), "1"
    )
    for name, value in {**changing, "OTHER": "1"}.items():
        monkeypatch.setenv(name, value)
    answers: dict[int, dict[str, Any]] = {}
    ask_all([{"job": "a"}], answers.__setitem__, module="fake_worker")
    assert answers[0]["OTHER"] == "1"
    assert not changing.keys() & answers[0].keys()


def test_no_temporary_folder_is_one_line_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    with pytest.raises(OutputError, match=r"No such file or directory\); set TMPDIR to one"):
        ask_all([{"job": "a"}], lambda *_: None, module="fake_worker")


def test_a_worker_that_is_stopped_while_it_starts_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fake_worker.py").write_text(WORKER, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = run.Worker("fake_worker")

    class Slow(run.Subprocess):
        def __init__(self, *words: Any, **options: Any) -> None:
            worker.stop()
            super().__init__(*words, **options)

    monkeypatch.setattr(run, "Subprocess", Slow)
    with pytest.raises(ChildProcessError, match="was stopped"):
        worker.ask({"job": "hang"}, 600)
    worker.close()


def test_an_interruption_ends_every_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fake_worker.py").write_text(WORKER, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def interrupt(index: int, answer: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_all([{"job": "a"}, {"job": "hang"}], interrupt, module="fake_worker", limit_s=60)


# the verb


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give exactly one of --target ID, --arch NAME and --all"),
        (["--all", "--arch", "sm_90"], "give exactly one of"),
        (["--arch", "sm_91"], "did you mean"),
        (["--target", "nvidia-h100"], "did you mean"),
        (["--arch", "sm_90", "--json", "/dev/null/x"], "cannot write"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
