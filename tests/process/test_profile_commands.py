"""The command lines of ``portagpu profile``: versions of the tools, and what is refused.

Neither nsys nor rocprofv3 runs here: ``tests/support/profilers`` refuses what their sources refuse.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu import cli
from portagpu.facts.captures.profilers import RECORDED, Profiler, Refused, Request, Tool
from portagpu.traces.profile import choice
from portagpu.traces.profile.choice import choose, installed, profilers
from portagpu.traces.profile.engine import read_command
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKES: Final = ROOT / "tests/support/profilers"
run: Final = partial(subprocess.run, check=False, capture_output=True, text=True)
ATTACHED: Final = (
    "NSYS_PROFILING_SESSION_ID",
    "NVPROF_ID",
    "CUDA_INJECTION64_PATH",
    "ROCP_TOOL_LIBRARIES",
    "LD_PRELOAD",
    "PORTAGPU_PROFILE",
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*ATTACHED, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    choice._backend.cache_clear()
    yield
    choice._backend.cache_clear()


def install(name: str, folder: Path) -> Path:
    """The fake tool as a program in ``folder``."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    words = shlex.join([sys.executable, "-I", f"{FAKES / name}.py"])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8")
    path.chmod(0o755)
    return path


def launch(name: str, version: str, **asked: Any) -> Any:
    asked = {"command": ("/usr/bin/python", "train.py"), "folder": Path("/out"), **asked}
    return profilers().by_name[name].launch(Request(**asked), Tool(name, version))


NSYS: Final = ["nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]


@pytest.mark.parametrize(
    ("version", "asked", "options"),
    [
        ("2021.4.1.73-08591f7", {}, ["--kill=none"]),
        ("2022.4.2.50", {}, ["--kill=none"]),
        ("2023.1.1", {}, ["--kill=none", "--cuda-graph-trace=node"]),
        ("2025.6.3.541-256337736014v0", {}, ["--kill=none", "--cuda-graph-trace=node"]),
        (
            "2026.4.1.191",
            {"region": True},
            [
                *("--kill=none", "--cuda-graph-trace=node"),
                *("--capture-range=cudaProfilerApi", "--capture-range-end=repeat"),
            ],
        ),
        (
            "2022.1.1",
            {"delay_s": 5.0, "duration_s": 20.0},
            ["--kill=none", "--delay=5", "--duration=20"],
        ),
    ],
)
def test_nsys_is_given_the_options_of_its_version(
    version: str, asked: dict[str, Any], options: list[str]
) -> None:
    found = launch("nsys", version, **asked)
    command = ["--output=/out/process", "/usr/bin/python", "train.py"]
    assert list(found.argv) == [*NSYS, *options, *command]
    assert found.outputs == "process.*sqlite"
    assert [step.argv for step in found.steps] == [
        ("nsys", "export", "--type=sqlite", "--output={output}", "{input}")
    ]


def test_nsys_traces_what_is_asked() -> None:
    ranges = launch("nsys", "2025.1", record=frozenset({"ranges"}))
    assert "--trace=nvtx" in ranges.argv
    # it is of kernels in graphs
    assert "--cuda-graph-trace=node" not in ranges.argv
    assert "--trace=cuda" in launch("nsys", "2025.1", record=frozenset({"copies"})).argv


def test_nsys_writes_one_report_a_rank_of_torchrun() -> None:
    found = launch("nsys", "2025.1", command=("/bin/torchrun", "x.py"), rank_python="/a b/python")
    assert found.argv == ("/bin/torchrun", "x.py")
    assert found.environment == {"PYTHON_EXEC": "/out/python-under-nsys"}
    head, line = found.scripts["python-under-nsys"].splitlines()
    assert head == "#!/bin/sh"
    words = shlex.split(line)
    assert words[:3] == ["exec", "nsys", "profile"]
    assert words[-3:] == ["--output=/out/rank%q{RANK}", "/a b/python", "$@"]
    assert found.outputs == "rank*.*sqlite"


def test_nsys_names_the_rank_that_the_launcher_gave() -> None:
    found = launch("nsys", "2025.1", rank=3)
    assert "--output=/out/rank3" in found.argv
    # not those of rank 30
    assert found.outputs == "rank3.*sqlite"


ROCPROF: Final = [
    *("rocprofv3", "--kernel-trace", "--memory-copy-trace", "--hip-runtime-trace"),
    *("--marker-trace", "--rccl-trace", "--output-format", "rocpd", "--output-directory", "/out"),
]


@pytest.mark.parametrize(
    ("version", "asked", "options"),
    [
        ("1.0.0", {}, ["--output-file", "process.pid%pid%"]),
        ("1.1.0", {"rank": 2}, ["--output-file", "rank2.pid%pid%"]),
        ("1.0.0", {"rank_python": "/p"}, ["--output-file", "rank%env{RANK}%.pid%pid%"]),
        ("1.0.0", {"region": True}, ["--output-file", "process.pid%pid%", "--selected-regions"]),
        (
            "1.0.0",
            {"delay_s": 1.5, "duration_s": 20.0},
            ["--output-file", "process.pid%pid%", "--collection-period", "1.5:20:1"],
        ),
    ],
)
def test_rocprofv3_collects_rocpd_alone(
    version: str, asked: dict[str, Any], options: list[str]
) -> None:
    found = launch("rocprofv3", version, **asked)
    assert list(found.argv) == [*ROCPROF, *options, "--", "/usr/bin/python", "train.py"]
    assert found.steps == ()


@pytest.mark.parametrize("kind", RECORDED)
def test_rocprofv3_traces_what_is_asked(kind: Any) -> None:
    options = {
        "kernels": "--kernel-trace",
        "copies": "--memory-copy-trace",
        "runtime": "--hip-runtime-trace",
        "ranges": "--marker-trace",
        "communication": "--rccl-trace",
    }
    argv = launch("rocprofv3", "1.0.0", record=frozenset({kind})).argv
    assert [word for word in argv if word.endswith("-trace")] == [options[kind]]


@pytest.mark.parametrize(
    ("tool", "version", "asked", "said"),
    [
        ("nsys", "2021.2.1", {}, "too old: install 2021.4"),
        ("nsys", "2025.1", {"delay_s": 0.5}, "whole seconds: --delay 0.5"),
        ("nsys", "2025.1", {"folder": Path("/a%b")}, "replaces what follows '%'"),
        (
            "nsys",
            "2025.1",
            {"command": ("torchrun", "--no-python", "x"), "rank_python": "/p"},
            "torchrun --no-python portagpu profile",
        ),
        ("rocprofv3", "0.6.0", {}, "writes no rocpd: install rocprofiler-sdk 1.0"),
        ("rocprofv3", "1.0.0", {"delay_s": 1.0}, "add --duration"),
        ("rocprofv3", "1.0.0", {"folder": Path("/a{pid}")}, "replaces what follows '{'"),
        ("torch", "2.13", {"folder": Path("/a\nb")}, r"cannot write to '/a\nb'"),
        ("torch", "2.13", {"folder": Path("/a\udcff")}, "choose another folder"),
        ("torch", "2.13", {"folder": Path("/a\\b")}, "choose another folder"),
    ],
)
def test_what_a_tool_cannot_do_is_refused(
    tool: str, version: str, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        launch(tool, version, **asked)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "variable", "version"),
    [
        ("nsys", "FAKE_NSYS_VERSION", "2025.6.3.541-256337736014v0"),
        ("nsys", "FAKE_NSYS_VERSION", "2021.4.1.73-08591f7"),
        ("rocprofv3", "FAKE_ROCPROF_VERSION", "1.0.0"),
    ],
)
def test_an_installed_tool_says_its_version(
    name: str, variable: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(name, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv(variable, version)
    assert installed(profilers().by_name[name]) == Tool(str(path), version)


def test_a_tool_without_a_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of ROCm 6: its parser has no --version
    path = install("rocprofv3", tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_ROCPROF_VERSION", "0.5.0")
    with pytest.raises(Refused, match="--version, which printed: usage: rocprofv3"):
        installed(profilers().by_name["rocprofv3"])


def test_versions_are_compared_by_number() -> None:
    assert Tool("", "2025.6.3.541-256337736014v0").release == (2025, 6, 3, 541)
    assert Tool("", "1.0.0rc1").release == (1, 0, 0)
    assert Tool("", "").release == ()


@pytest.mark.parametrize("version", ["2021.4.1", "2022.1.1", "2023.4.4", "2025.6.3", "2026.4.1"])
@pytest.mark.parametrize("asked", [{}, {"region": True}, {"delay_s": 1, "duration_s": 2}])
def test_the_fake_nsys_takes_every_line_that_is_built(
    version: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    path = install("nsys", tmp_path / "bin")
    request = Request(command=("/bin/true",), folder=tmp_path, **asked)
    line = profilers().by_name["nsys"].launch(request, Tool(str(path), version)).argv
    done = run(line, env={"FAKE_NSYS_VERSION": version})
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.glob("process*.nsys-rep"))


def test_the_fake_nsys_refuses_what_its_version_lacks(tmp_path: Path) -> None:
    path = install("nsys", tmp_path / "bin")
    done = run(
        [path, "profile", "--cuda-graph-trace=node", "--output=x", "/bin/true"],
        env={"FAKE_NSYS_VERSION": "2021.4.1"},
    )
    assert done.returncode == 1
    assert "unrecognised option '--cuda-graph-trace'" in done.stderr


def refusal(*words: str) -> str:
    with pytest.raises(Refused) as refused:
        read_command(words, os.environ, profilers().by_name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the command after --"),
        (("python train.py",), "is one word"),
        (("no-such-program", "x"), "'no-such-program' is not a program in PATH"),
        (("./no/such", "x"), "'./no/such' is not an executable program"),
        (("/etc/passwd",), "is not an executable program"),
    ],
)
def test_what_is_not_a_command_is_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refusal(*words)


@pytest.mark.parametrize("name", ["nsys", "ncu", "rocprofv3", "rocprof", "proton"])
def test_a_profiler_as_the_command_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert f"{name} is a profiler, and two at a time" in refusal(name, "python", "train.py")


def test_protons_module_as_the_command_is_refused() -> None:
    words = (sys.executable, "-u", "-m", "triton.profiler.proton", "train.py")
    assert "triton.profiler.proton is a profiler" in refusal(*words)


@pytest.mark.parametrize(
    ("words", "is_module"),
    [
        # python --help: [option] ... [-c cmd | -m mod | file | -] [arg] ...
        (("-X", "dev", "-W", "error", "-m", "triton.profiler.proton"), True),
        (("-X", "-m", "triton.profiler.proton"), False),
        (("train.py", "-m", "triton.profiler.proton"), False),
        (("-u", "train.py", "-m", "triton.profiler.proton"), False),
        (("-m", "train", "-m", "triton.profiler.proton"), False),
        (("-m",), False),
    ],
)
def test_a_module_is_the_command_s_only_before_its_program(
    words: tuple[str, ...], is_module: bool
) -> None:
    given = (sys.executable, *words)
    if is_module:
        assert "is a profiler" in refusal(*given)
    else:
        assert read_command(given, os.environ, profilers().by_name).words == given


@pytest.mark.parametrize("variable", ATTACHED)
def test_a_profiler_around_this_process_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"LD_PRELOAD": "/opt/rocm/lib/librocprofiler-sdk.so"}
    monkeypatch.setenv(variable, values.get(variable, "1"))
    assert f"({variable} is set)" in refusal(sys.executable, "train.py")


def test_other_preloaded_libraries_are_not_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so")
    assert read_command((sys.executable,), os.environ, profilers().by_name).words


@pytest.mark.parametrize("name", ["srun", "mpirun", "mpiexec"])
def test_a_job_launcher_is_to_be_in_front(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert f"({name} ... portagpu profile -- PROGRAM)" in refusal(name, "-n", "4", "python")


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "1"}, 1),
        ({"RANK": "2", "SLURM_PROCID": "0"}, 2),
        # mpirun runs in one task of Slurm on each machine
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"SLURM_PROCID": "0", "PMI_RANK": "4"}, 4),
        ({"RANK": "x"}, None),
    ],
)
def test_the_rank_is_what_the_launcher_said(
    variables: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_command((sys.executable,), os.environ, profilers().by_name).rank == rank


def test_torchrun_and_its_module_start_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    program = tmp_path / "torchrun"
    # a first line takes no path with a blank
    program.write_text(f"#!{python}\n", "utf-8")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # the rank of the node's task is none of theirs
    monkeypatch.setenv("SLURM_PROCID", "1")
    found = read_command(("torchrun", "x.py"), os.environ, profilers().by_name)
    assert (found.rank, found.rank_python) == (None, str(python))
    words = (sys.executable, "-m", "torch.distributed.run", "x.py")
    found = read_command(words, os.environ, profilers().by_name)
    assert (found.rank, found.rank_python) == (None, sys.executable)
    options = (sys.executable, "-u", "-X", "dev", "-m", "torch.distributed.run", "x.py")
    assert read_command(options, os.environ, {}).rank_python == sys.executable
    script = (sys.executable, "x.py", "-m", "torch.distributed.run")
    assert read_command(script, os.environ, profilers().by_name).rank_python == ""


def test_a_torchrun_that_hides_its_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "torchrun"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "use python -m torch.distributed.run" in refusal("torchrun", "x.py")


def test_every_vendors_profiler_has_the_attributes() -> None:
    found, problems = profilers()
    assert sorted(found) == ["nsys", "rocprofv3", "torch"]
    assert problems == ()
    assert all(isinstance(each, Profiler) for each in found.values())


class _Foreign:
    """An entry point of another distribution."""

    def __init__(self, value: object, name: str = "acme") -> None:
        self.name, self.value, self.group = name, "acme:X", "portagpu.profilers"
        self.dist = None
        self._loaded = value

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (RuntimeError("no licence"), "it raised RuntimeError: no licence"),
        (3, "it is a int without a profiler's attributes"),
        ("nsys", "it has the name 'nsys', which is taken"),
    ],
)
def test_a_broken_profiler_of_another_distribution_stops_no_other(
    value: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value == "nsys":
        value = profilers().by_name["nsys"]
    points = [*choice.entry_points(choice.GROUP), _Foreign(value)]
    monkeypatch.setattr(choice, "entry_points", lambda _: points)
    profilers.cache_clear()
    monkeypatch.setattr(choice, "_backend", _Cached(""))
    try:
        found, problems = profilers()
        remark = choose(None).remark
        with pytest.raises(Refused) as refused:
            choose("acme")
    finally:
        profilers.cache_clear()
    assert sorted(found) == ["nsys", "rocprofv3", "torch"]
    assert [said in each for each in problems] == [True]
    assert said in remark
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("backend", "tool", "chosen", "remark"),
    [
        ("cuda", "nsys", "nsys", ""),
        ("rocm", "rocprofv3", "rocprofv3", ""),
        ("cuda", "rocprofv3", "torch", "nsys is not installed"),
        ("rocm", "nsys", "torch", "rocprofv3 is not installed"),
        ("cpu", "nsys", "torch", ""),
        ("", "nsys", "torch", ""),
    ],
)
def test_the_backends_vendor_decides(
    backend: str,
    tool: str,
    chosen: str,
    remark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = install(tool, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(choice, "_backend", _Cached(backend))
    found = choose(None)
    assert found.profiler.name == chosen
    assert found.on_gpu == (backend in ("cuda", "rocm"))
    assert found.remark.startswith(remark)
    assert bool(found.remark) == bool(remark)


class _Cached:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> str:
        return self.name

    def cache_clear(self) -> None:
        """As functools.cache has it."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--with", "nsis", "--", "true"], "unknown profiler 'nsis': did you mean 'nsys'?"),
        (["--with", "nsys", "--", "true"], "nsys is not installed"),
        (["--with", "torch", "--record", "kernel", "--", "true"], "did you mean 'kernels'?"),
        (["--with", "torch", "--record", ",", "--", "true"], "nothing is left to record"),
        (["--with", "torch", "--region", "--delay", "1", "--", "true"], "either --region, or"),
        (["--with", "torch", "--duration", "0", "--", "true"], "--duration"),
        (["--with", "torch", "--delay", "nan", "--", "true"], "nan is not a finite number"),
        (["--tool-version", "2025.1", "--", "true"], "together with --with"),
        (
            ["--with", "nsys", "--tool-version", "2025.1", "--", "true"],
            "--tool-version needs --print",
        ),
        (["--with", "torch"], "give the command after --"),
        (["--with", "torch", "--", "python train.py"], "is one word"),
        (["--print", "--with", "nsys", "--tool-version", "2019.1", "--", "true"], "too old"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str],
    said: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert cli.main(["profile", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("portagpu: profile: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--with", "nsys", "--tool-version", "2025.1", "-o", "/out dir", "--"],
            [
                "nsys profile --trace=cuda,nvtx",
                "'--output=/out dir/process'",
                "FILE.sqlite FILE.nsys-rep",
            ],
        ),
        (
            ["--with", "rocprofv3", "--tool-version", "1.0.0", "-o", "/out", "--"],
            ["rocprofv3 --kernel-trace", "--output-format rocpd", "process.pid%pid%", " -- "],
        ),
        pytest.param(
            ["--with", "torch", "-o", "/out", "--"],
            ["PYTHONPATH=", "'PORTAGPU_PROFILE={"],
            marks=pytest.mark.torch,
        ),
    ],
)
def test_print_shows_the_line_and_runs_nothing(
    words: list[str],
    said: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    made = tmp_path / "made"
    assert cli.main(["profile", "--print", *words, "touch", str(made)]) == 0
    out, _ = capfd.readouterr()
    assert all(each in out for each in said), out
    line = next(line for line in out.splitlines() if not line.startswith("#"))
    # as a shell takes it: the command stands at its end
    assert shlex.split(line)[-2:] == ["/usr/bin/touch", str(made)]
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_runs_the_same_in_a_shell(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install("nsys", tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    out = tmp_path / "a 'folder'"
    # nothing is wrapped as on a narrow terminal, and nothing left out
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("portagpu.cli._common.live_console", lambda stream: stream)
    words = ["--print", "--with", "nsys", "-o", str(out), "--", "printf", "%s", "a  b\n\t$HOME"]
    assert cli.main(["profile", *words]) == 0
    text = capfd.readouterr().out
    out.mkdir()
    done = run(["/bin/sh", "-c", text])
    assert (done.returncode, done.stdout) == (0, "a  b\n\t$HOME")
    assert [each.name for each in out.iterdir()] == ["process.nsys-rep"]
