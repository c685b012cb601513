"""``portagpu profile`` with torch's profiler, on real processes of this CPU."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from portagpu import cli
from portagpu.facts.captures.profilers import Refused
from portagpu.runs.results.run import Verdict
from portagpu.traces.profile import choice
from tests.support.profile_reader import read
from tests.support.profile_runs import files, profiled, result, write_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    choice._backend.cache_clear()
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    for name in ("RANK", "LD_PRELOAD", "PORTAGPU_PROFILE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    yield
    choice._backend.cache_clear()


def test_a_script_gives_one_trace(tmp_path: Path) -> None:
    run = profiled(tmp_path, str(write_script(tmp_path)))
    captured = result(run, "captured")
    assert run.verdict is Verdict.PASS
    assert result(run, "command").extra == {"exit_code": 0}
    # two random matrices and a product, with what they are made of
    assert captured.extra["counts"]["operator"] >= 3
    assert captured.extra["counts"]["range"] >= 1
    assert captured.value == captured.extra["counts"]["operator"]
    assert files(tmp_path) == ["process.pidN.pt.trace.json"]


def test_a_module_gives_one_trace_and_the_users_path_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path, name="trainer.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = profiled(tmp_path, "-m", "trainer")
    assert run.verdict is Verdict.PASS
    assert files(tmp_path) == ["process.pidN.pt.trace.json"]


RANKS = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(rank + 1):
        torch.ones(4) + 1
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    if rank == 1:
        {end}
"""


def torchrun(folder: Path, end: str) -> tuple[str, ...]:
    script = write_script(folder, RANKS.format(end=end))
    options = ("--nproc-per-node", "2", "--standalone")
    return ("-m", "torch.distributed.run", *options, str(script))


def test_torchrun_gives_one_trace_a_rank_and_none_of_itself(tmp_path: Path) -> None:
    run = profiled(tmp_path, *torchrun(tmp_path, "pass"))
    assert run.verdict is Verdict.PASS, run.results
    assert files(tmp_path) == [f"rank{rank}.pidN.pt.trace.json" for rank in (0, 1)]
    for rank in (0, 1):
        (trace,) = (tmp_path / "out").glob(f"rank{rank}.*")
        names = read(trace).tables["operator"].column("name").to_pylist()
        assert names.count("aten::add") == rank + 1
        assert json.loads(trace.read_text("utf-8"))["distributedInfo"]["world_size"] == 2
        assert result(run, "captured", f"rank {rank}").verdict is Verdict.PASS


def test_a_rank_without_a_trace_is_named(tmp_path: Path) -> None:
    run = profiled(tmp_path, *torchrun(tmp_path, "os._exit(0)"))
    assert result(run, "command").verdict is Verdict.PASS
    assert result(run, "captured", "rank 0").verdict is Verdict.PASS
    missing = result(run, "captured", "rank 1")
    assert missing.verdict is Verdict.FAIL
    assert missing.reason == (
        "nothing was captured: the process ended without Python's exit handlers "
        "(os._exit, or a signal)"
    )
    assert run.exit_code == 1


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise SystemExit(3)", 3, "the command exited with code 3"),
        ("raise ValueError('wrong')", 1, "the command exited with code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, "died of SIGTERM"),
    ],
)
def test_the_commands_own_end_decides(tmp_path: Path, end: str, code: int, said: str) -> None:
    script = write_script(tmp_path, f"import torch\ntorch.ones(2) + 1\n{end}\n")
    run = profiled(tmp_path, str(script))
    command = result(run, "command")
    assert (command.verdict, command.extra["exit_code"]) == (Verdict.FAIL, code)
    assert said in command.reason
    assert (run.verdict, run.exit_code) == (Verdict.FAIL, 1)
    if code > 0:
        # Python's exit handlers ran
        assert result(run, "captured").verdict is Verdict.PASS
    else:
        assert "ended without Python's exit handlers" in result(run, "captured").reason


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("print('no torch')", {}, "imported no torch, or its Python ignores PYTHONPATH"),
        ("import torch", {}, "torch did nothing that is recorded"),
        (
            "import torch\ntorch.ones(2) + 1",
            {"region": True},
            "no region was opened: open one with pg.region",
        ),
        ("import torch\ntorch.ones(2) + 1", {"delay_s": 1e300}, "--delay and --duration leave"),
        (
            "import os, torch\ntorch.ones(2) + 1\nos._exit(0)",
            {},
            "ended without Python's exit handlers",
        ),
    ],
)
def test_nothing_captured_fails_and_says_why(
    tmp_path: Path, text: str, options: dict[str, bool], said: str
) -> None:
    run = profiled(tmp_path, str(write_script(tmp_path, text)), **options)
    captured = result(run, "captured")
    assert result(run, "command").verdict is Verdict.PASS
    assert captured.verdict is Verdict.FAIL
    assert said in captured.reason
    assert files(tmp_path) == []
    assert run.exit_code == 1


def test_a_python_that_ignores_the_environment_is_a_reason(tmp_path: Path) -> None:
    run = profiled(tmp_path, "-E", str(write_script(tmp_path)))
    assert "options -E, -I" in result(run, "captured").reason


LOADER = """
    import torch
    from torch.utils.data import DataLoader

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.ones(2) * index

    if __name__ == "__main__":
        for way in ("fork", "spawn", "forkserver"):
            loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=way)
            assert len(list(loader)) == 4
        torch.ones(2) + 1
"""


def test_workers_write_no_traces(tmp_path: Path) -> None:
    run = profiled(tmp_path, str(write_script(tmp_path, LOADER)))
    assert run.verdict is Verdict.PASS
    assert files(tmp_path) == ["process.pidN.pt.trace.json"]


SPAWNED = """
    import os, torch, torch.distributed as dist

    def train(rank, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=2)
        torch.ones(2) + rank

    if __name__ == "__main__":
        import socket
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        torch.multiprocessing.spawn(train, (port,), nprocs=2)
"""


def test_spawned_ranks_are_profiled_as_such(tmp_path: Path) -> None:
    run = profiled(tmp_path, str(write_script(tmp_path, SPAWNED)))
    assert run.verdict is Verdict.PASS, run.results
    assert files(tmp_path) == [f"rank{rank}.pidN.pt.trace.json" for rank in (0, 1)]


def test_a_fork_that_ends_like_a_process_writes_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
        import os, sys, torch
        if os.fork() == 0:
            torch.ones(2) + 1
            print("said", flush=False)
            sys.exit(7)
        # torch's own destructors would hang in the fork
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        torch.ones(2) + 1
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)))
    assert run.verdict is Verdict.PASS
    assert "said" in capfd.readouterr().out
    assert files(tmp_path) == ["process.pidN.pt.trace.json"]


def test_other_threads_are_recorded(tmp_path: Path) -> None:
    text = """
        import threading, torch
        thread = threading.Thread(target=lambda: torch.ones(2).cumsum(0))
        thread.start()
        thread.join()
    """
    profiled(tmp_path, str(write_script(tmp_path, text)))
    (trace,) = (tmp_path / "out").iterdir()
    assert "aten::cumsum" in read(trace).tables["operator"].column("name").to_pylist()


def test_the_users_own_sitecustomize_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, "import builtins\nbuiltins.from_own = 'it ran'\n", "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(own))
    text = "import sitecustomize, sys\nassert from_own == 'it ran'\n"
    text += f"assert sitecustomize.__file__ == {str(own / 'sitecustomize.py')!r}\n"
    text += "assert not any('portagpu/traces/profile/start' in each for each in sys.path)\n"
    run = profiled(tmp_path, str(write_script(tmp_path, f"{text}import torch\ntorch.ones(2) + 1")))
    assert run.verdict is Verdict.PASS


def test_a_broken_sitecustomize_of_the_user_is_reported_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, "raise ValueError('mine')\n", "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(own))
    run = profiled(tmp_path, str(write_script(tmp_path)))
    assert run.verdict is Verdict.PASS
    assert "ValueError: mine" in capfd.readouterr().err


def test_a_program_may_look_for_torch_before_and_into_it_afterwards(tmp_path: Path) -> None:
    text = "import importlib.util\nassert importlib.util.find_spec('torch')\n"
    text += "import inspect, torch\nassert inspect.getsource(torch)\ntorch.ones(2) + 1\n"
    text += "import importlib\nimportlib.reload(importlib)\nassert torch.__spec__.name == 'torch'"
    assert profiled(tmp_path, str(write_script(tmp_path, text))).verdict is Verdict.PASS


REGIONS = """
    import torch, portagpu
    torch.ones(2).cumsum(0)
    for _ in range({count}):
        {start}()
        torch.ones(2) + 1
        {stop}()
    torch.ones(2).cumprod(0)
"""


@pytest.mark.parametrize("module", ["portagpu.profiler", "torch.cuda.profiler"])
def test_a_region_alone_is_recorded(tmp_path: Path, module: str) -> None:
    text = REGIONS.format(count=2, start=f"{module}.start", stop=f"{module}.stop")
    if module == "torch.cuda.profiler":
        # in place of a CUDA build's runtime
        text = f"""
    import torch
    runtime = type("Runtime", (), dict(cudaProfilerStart=int, cudaProfilerStop=int))
    torch.cuda.profiler.cudart, torch.cuda.profiler.check_error = runtime, int
    {text}"""
    run = profiled(tmp_path, str(write_script(tmp_path, text)), region=True)
    assert run.verdict is Verdict.PASS, run.results
    traces = sorted((tmp_path / "out").iterdir())
    assert files(tmp_path) == [f"process.pidN.{number}.pt.trace.json" for number in (1, 2)]
    for trace in traces:
        names = read(trace).tables["operator"].column("name").to_pylist()
        assert "aten::add" in names
        assert not {"aten::cumsum", "aten::cumprod"} & set(names)


def test_a_region_of_the_package_is_recorded(tmp_path: Path) -> None:
    text = """
        import torch, portagpu
        torch.ones(2).cumsum(0)
        with portagpu.region("step"), portagpu.region():
            torch.ones(2) + 1
        torch.ones(2).cumprod(0)
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)), region=True)
    assert run.verdict is Verdict.PASS, run.results
    (trace,) = (tmp_path / "out").iterdir()
    names = set(read(trace).tables["operator"].column("name").to_pylist())
    assert "aten::add" in names
    assert not {"aten::cumsum", "aten::cumprod"} & names
    assert read(trace).tables["range"].num_rows == 1


SCHEDULED = """
    import os, sys, torch, portagpu as pg
    torch.ones(2).cumsum(0)
    with pg.profiling("mine.json.gz", wait=1, warmup=1, active=2, repeat=2) as steps:
        for step in range({steps}):
            with pg.annotate("forward", step=step):
                torch.ones(2) + 1
            steps.step()
    torch.ones(2).cumprod(0)
    assert all(os.path.dirname(path) == {folder!r} for path in steps.paths)
"""


def scheduled(folder: Path, steps: int = 9) -> str:
    text = SCHEDULED.format(steps=steps, folder=str(folder / "out"))
    return str(write_script(folder, text))


@pytest.mark.parametrize("options", [{}, {"region": True}, {"delay_s": 0.0, "duration_s": 60.0}])
def test_a_schedule_of_the_program_decides_what_is_recorded(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = profiled(tmp_path, scheduled(tmp_path), **options)
    assert run.verdict is Verdict.PASS, run.results
    assert files(tmp_path) == [f"process.pidN.{number}.pt.trace.json" for number in (1, 2)]
    assert not list(tmp_path.glob("mine*")), "the program's own place got a file"
    captured = result(run, "captured")
    assert sorted(captured.extra["files"]) == sorted(
        each.name for each in (tmp_path / "out").iterdir()
    )
    for trace, steps in zip(sorted((tmp_path / "out").iterdir()), ([2, 3], [6, 7]), strict=True):
        tables = read(trace).tables
        names = tables["operator"].column("name").to_pylist()
        assert names.count("aten::add") == 2
        assert not {"aten::cumsum", "aten::cumprod"} & set(names)
        marks = [each for each in tables["range"].column("name").to_pylist() if "forward" in each]
        assert [int(each.partition(":")[2].rstrip("}")) for each in marks] == steps


def test_ranks_of_torchrun_with_a_schedule_have_files_of_their_own(tmp_path: Path) -> None:
    script = scheduled(tmp_path)
    words = ("--nproc-per-node", "2", "--standalone", script)
    run = profiled(tmp_path, "-m", "torch.distributed.run", *words)
    assert run.verdict is Verdict.PASS, run.results
    assert files(tmp_path) == [
        f"rank{rank}.pidN.{number}.pt.trace.json" for rank in (0, 1) for number in (1, 2)
    ]
    for rank in (0, 1):
        captured = result(run, "captured", f"rank {rank}")
        assert len(captured.extra["files"]) == 2
        assert captured.extra["counts"]["operator"] >= 4
        for name in captured.extra["files"]:
            info = json.loads((tmp_path / "out" / name).read_text("utf-8"))["distributedInfo"]
            assert (info["rank"], info["world_size"]) == (rank, 2)


def test_a_schedule_that_records_nothing_is_the_reason(tmp_path: Path) -> None:
    run = profiled(tmp_path, scheduled(tmp_path, steps=1))
    assert result(run, "command").verdict is Verdict.FAIL
    captured = result(run, "captured")
    assert captured.verdict is Verdict.FAIL
    assert "the program's own schedule (pg.profiling) recorded nothing" in captured.reason
    assert files(tmp_path) == []


def test_delay_and_duration_bound_what_is_recorded(tmp_path: Path) -> None:
    text = """
        import sys, time, torch
        launched = sys.modules["portagpu_launched"].process
        torch.ones(2).cumsum(0)
        while launched.profile is None:
            time.sleep(0.01)
        torch.ones(2) + 1
        while launched.profile is not None:
            time.sleep(0.01)
        with launched.lock:
            torch.ones(2).cumprod(0)
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)), delay_s=0.2, duration_s=0.3)
    assert run.verdict is Verdict.PASS, run.results
    (trace,) = (tmp_path / "out").iterdir()
    names = set(read(trace).tables["operator"].column("name").to_pylist())
    assert "aten::add" in names
    assert not {"aten::cumsum", "aten::cumprod"} & names


def test_a_program_with_a_profiler_of_its_own_is_reported(tmp_path: Path) -> None:
    text = """
        import torch
        torch.ones(2).cumsum(0)
        with torch.profiler.profile() as own:
            torch.ones(2) + 1
        assert "aten::add" in {each.name for each in own.events()}
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)))
    captured = result(run, "captured")
    assert result(run, "command").verdict is Verdict.PASS
    assert captured.verdict is Verdict.FAIL
    assert captured.reason.startswith("the capture ends early: the command starts torch's profiler")
    # what came before is there
    assert captured.extra["counts"]["operator"]


def test_a_folder_with_captures_is_refused(tmp_path: Path) -> None:
    script = str(write_script(tmp_path))
    assert profiled(tmp_path, script).verdict is Verdict.PASS
    before = files(tmp_path)
    with pytest.raises(Refused, match="holds captures of another run"):
        profiled(tmp_path, script)
    assert files(tmp_path) == before


def test_a_command_that_marks_nothing_is_reported_so(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import torch\ntorch.ones(2) + 1")
    run = profiled(tmp_path, str(script), record=frozenset({"ranges"}))
    assert result(run, "captured").reason.startswith(
        "no ranges were captured: the command marked nothing (portagpu.annotate)"
    )


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    text = """
        import pathlib, torch
        def export(self, path):
            pathlib.Path(path + ".tmp").write_text("cut")
        torch.profiler.profile.export_chrome_trace = export
        torch.ones(2) + 1
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)))
    assert "torch could not write the trace: is there space" in result(run, "captured").reason
    assert files(tmp_path) == []


def test_other_ranks_may_use_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = str(write_script(tmp_path))
    # mpirun's ranks are the second, where Slurm's is that of the machine
    for variable, rank in (("SLURM_PROCID", "3"), ("OMPI_COMM_WORLD_RANK", "30")):
        monkeypatch.setenv(variable, rank)
        run = profiled(tmp_path, script)
        assert result(run, "captured", f"rank {rank}").verdict is Verdict.PASS
    assert files(tmp_path) == [f"rank{rank}.pidN.pt.trace.json" for rank in (3, 30)]
    with pytest.raises(Refused):
        profiled(tmp_path, script)


def test_a_damaged_trace_is_an_error(tmp_path: Path) -> None:
    # the handlers run last in first out: this one comes after the trace was written
    text = f"""
        import atexit
        @atexit.register
        def cut():
            import pathlib
            for trace in pathlib.Path({str(tmp_path / "out")!r}).iterdir():
                trace.write_text(trace.read_text()[:200])
        import torch
        torch.ones(2) + 1
    """
    run = profiled(tmp_path, str(write_script(tmp_path, text)))
    (broken,) = [each for each in run.results if each.id == "profile/output"]
    assert broken.verdict is Verdict.ERROR
    assert run.exit_code == 1


def test_what_the_command_prints_and_reads_passes_through(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.traces.analysis.reading.read", read)
    monkeypatch.chdir(tmp_path)
    text = "import sys, torch\ntorch.ones(2) + 1\nprint('said', input())\n"
    text += "print('err', file=sys.stderr)\n"
    script = write_script(tmp_path, text)
    ours, theirs = os.pipe()
    os.write(theirs, b"line\n")
    os.close(theirs)
    kept = os.dup(0)
    os.dup2(ours, 0)
    try:
        words = ["--with", "torch", "-o", "out", "--", sys.executable, str(script)]
        assert cli.main(["profile", *words]) == 0
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(ours)
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert lines[0] == "said line"
    assert lines[1] == "PASS command"
    assert lines[2].startswith("PASS captured: ")
    assert lines[3].startswith(f"    {tmp_path}/out/process.pid")
    assert lines[-1] == "PASS"
    assert "err" in err
    assert f"records to {tmp_path}/out" in err


def test_json_alone_is_on_standard_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.traces.analysis.reading.read", read)
    monkeypatch.chdir(tmp_path)
    script = write_script(tmp_path, "import torch\ntorch.ones(2) + 1\nprint('said')\n")
    words = ["--with", "torch", "--json", "-", "--", sys.executable, str(script)]
    assert cli.main(["profile", *words]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert [each["id"] for each in document["results"]] == ["profile/command", "profile/captured"]
    assert document["run"]["versions"]["torch"].startswith("2.")
    assert "said" in err.splitlines()


def test_untrusted_markup_stays_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.traces.analysis.reading.read", read)
    folder = tmp_path / "a\x1b[31mb"
    words = ["--with", "torch", "-o", str(folder), "--", sys.executable, "-c", "import torch"]
    assert cli.main(["profile", *words]) == 1
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err.replace("USDT", "")
