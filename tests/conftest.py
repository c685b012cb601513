"""What all tests share: the installed package under test, wheels, and child processes."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

import portagpu

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from portagpu.runs.world import Ranks
    from tests.support.forked import Prepared
    from tests.support.forked_verbs import ForkedVerbs

ROOT: Final = Path(__file__).resolve().parents[1]
CHILD_LIMIT_S: Final = 120
MIN_FREE_BYTES: Final = 512 << 20
"""For temporary files: some files of tests leave 200 MiB, which pytest removes after three runs."""
CORES: Final = len(os.sched_getaffinity(0))
"""For the number of threads of a long child: no test's result depends on it."""

# workers share the cores, and a thread of torch that waits for another worker's core spins;
# torch is not imported yet, and what a test starts inherits it
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    share = max(1, CORES // int(workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))

ENVIRONMENT: Final = {name: text for name, text in os.environ.items() if name != "PORTAGPU_BACKEND"}
"""Of the rank server, whatever the test that starts it has set."""

# last, so that `from tests.x import y` works and the installed package is still the one under test
sys.path.append(str(ROOT))


# a shell has what it runs in the background ignore Ctrl-C, which children inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Print what tests cost after each run, and hold them to their budgets of processes."""
    from tests.support.costs import Costs
    from tests.support.owned import MARKERS, Owned

    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Costs(), "costs")
    # all workers of a run have one parent
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    config.pluginmanager.register(Owned(Path(tempfile.gettempdir(), f"heavy-{run}")), "owned")
    # of a checkout that is read-only: pytest only remembers less there
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestCacheWarning")


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the run with one line where tests have no room to write."""
    given = session.config.getoption("basetemp")
    try:
        place = Path(given).resolve().parent if given else Path(tempfile.gettempdir())
        free = shutil.disk_usage(place).free
    except OSError as error:
        pytest.exit(f"tests cannot write temporary files: {error}: set TMPDIR", returncode=4)
    if free < MIN_FREE_BYTES:
        pytest.exit(
            f"{place} has {free >> 20} MiB free, and tests write there: set TMPDIR to a folder "
            f"with {MIN_FREE_BYTES >> 20} MiB",
            returncode=4,
        )


def pytest_report_header() -> str:
    """Say which portagpu is tested: a checkout's or an installed wheel's."""
    return f"portagpu: {portagpu.__version__} from {Path(portagpu.__file__).parent}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the modules and tests, which stay: half of the time to collect."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have each worker collect from another file on.

    Workers write what they compile next to the files. So each compiles its share in a fresh
    checkout, and reads what the others wrote of theirs.
    """
    report = yield
    if workers and isinstance(collector, pytest.Directory):
        found = report.result
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        begin = len(found) * number // int(workers)
        report.result = [*found[begin:], *found[:begin]]
    return report


def pytest_xdist_auto_num_workers() -> int:
    """Two workers a core: a third of a run is waiting for what does not end by itself."""
    return CORES * 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have workers begin with the longest tests, so that none of them is left over for the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda each: str(each.path))
        first = {each.path for each in items if each.get_closest_marker("first")}
        items.sort(key=lambda each: each.path not in first)


@pytest.fixture(autouse=True)
def _no_backend_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own choice of backend must not change what the tests see."""
    monkeypatch.delenv("PORTAGPU_BACKEND", raising=False)


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is judged as on a machine without other load: else it may be INCONCLUSIVE."""
    from portagpu.base.patience import Starvation

    monkeypatch.setattr(Starvation, "is_starved", property(lambda _: False))


@pytest.fixture
def without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch multiplies fp8 on the CPU by itself: what oneDNN has of it depends on the CPU."""
    import torch

    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@dataclass(frozen=True, slots=True)
class Child:
    """How a child process ended."""

    code: int
    out: str
    err: str

    def ok(self) -> str:
        """Its output; fails the test with everything it said when it did not exit with 0."""
        assert self.code == 0, f"the child exited with {self.code}\n{self.out}\n{self.err}"
        return self.out


def run_child(
    folder: Path,
    *words: str,
    path: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    limit_s: float = CHILD_LIMIT_S,
) -> Child:
    """Run this Python in ``folder``, which is not on its path, with ``path`` before all others."""
    passed = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    passed["PYTHONPATH"] = os.pathsep.join([*map(str, path), *inherited])
    passed["PYTHONSAFEPATH"] = "1"
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**passed, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Child(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Child]:
    """Run this Python in an empty folder: ``child("-c", code, path=[folders before all others])``.

    The folder that it is started in is not on its path.
    """
    folder = tmp_path / "child"
    folder.mkdir()
    return partial(run_child, folder)


@pytest.fixture(scope="session")
def _prepared() -> Iterator[Prepared | None]:
    if importlib.util.find_spec("torch") is None:
        yield None
        return
    from tests.support.forked import prepared_process

    with prepared_process() as prepared:
        yield prepared


@pytest.fixture(scope="module")
def forked(_prepared: Prepared | None) -> Iterator[None]:
    """Fork the Python children of a module's tests where they can be (``tests/support/forked``).

    Without torch they are started.
    """
    from tests.support.forked import forking

    with forking(_prepared) if _prepared else contextlib.nullcontext():
        yield


@pytest.fixture
def started() -> Iterator[None]:
    """Start the Python children of a test, also in a module that uses ``forked``."""
    from tests.support.forked import starting

    with starting():
        yield


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a module of that source where only this test's children find it first."""

    def write(name: str, source: str) -> None:
        folder = tmp_path / "stand-ins"
        package = folder / name.replace(".", "/")
        package.parent.mkdir(parents=True, exist_ok=True)
        if package.parent != folder:
            # without it, an installed package of that name would be found instead
            (package.parent / "__init__.py").touch()
        package.with_suffix(".py").write_text(textwrap.dedent(source), encoding="utf-8")
        if str(folder) not in sys.path:
            monkeypatch.syspath_prepend(str(folder))

    return write


TRAINING: Final = "tests.support.ranks:import_training"


@pytest.fixture(scope="session")
def rank_server() -> Iterator[Ranks]:
    """The rank server of this worker, for fixtures of modules: tests take ``ranks``.

    A test that needs an environment of its own, or that ends the server, starts another one.
    """
    yield from _serve()


@pytest.fixture(scope="session")
def training_server() -> Iterator[Ranks]:
    """The same with torch's compiler and FSDP, which makes every fork half as dear again."""
    yield from _serve(TRAINING)


@pytest.fixture
def ranks(rank_server: Ranks) -> Iterator[Ranks]:
    """The rank server of this worker, which is there, and has no ranks when the test ends."""
    yield from _lend(rank_server)


@pytest.fixture
def training_ranks(training_server: Ranks) -> Iterator[Ranks]:
    """The same for ranks with an optimiser, DDP or FSDP, which import torch's compiler."""
    yield from _lend(training_server, TRAINING)


def _serve(ahead: str = "") -> Iterator[Ranks]:
    pytest.importorskip("torch")
    from portagpu.runs.world import Ranks

    with Ranks() as server:
        _start(server, ahead)
        yield server
        assert ranks_left(server) == [], "ranks are left at the end"


def _lend(server: Ranks, ahead: str = "") -> Iterator[Ranks]:
    _start(server, ahead)
    before = server._child
    yield server
    if server._child is not before:
        # what a test starts again has the environment of that test
        server.close()
    assert ranks_left(server) == [], "ranks are left of a test"


def _start(server: Ranks, ahead: str) -> None:
    if server._child is not None and server._child.running:
        return
    with mock.patch.dict(os.environ, ENVIRONMENT, clear=True):
        server.start()
    if ahead:
        server.prepare(ahead, backend="cpu")


def ranks_left(server: Ranks) -> list[int]:
    """The processes below a rank server, which has some only while it runs a world."""
    from tests.support.processes import descendants

    return descendants(server._child.pid) if server._child is not None else []


@pytest.fixture(scope="session")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedVerbs]:
    """``verbs("info", "--json", "-")`` is a fork that runs the command line, as a Child."""
    from tests.support.forked_verbs import ForkedVerbs

    with ForkedVerbs(tmp_path_factory.mktemp("verbs")) as started:
        yield started


def build_wheel(project: Path, into: Path) -> Path:
    """Build the wheel of a project with pip, in this environment and without any download."""
    pip(["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(into), str(project)])
    (wheel,) = into.glob("*.whl")
    return wheel


def install(wheel: Path, into: Path) -> Path:
    """Install a wheel, and nothing that it needs, into a folder of its own."""
    pip(["install", "--quiet", "--no-deps", "--no-index", "--target", str(into), str(wheel)])
    return into


def pip(words: Sequence[str]) -> None:
    """Run pip; fails the test with what it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, f"pip {' '.join(words)}\n{ended.stdout}\n{ended.stderr}"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What ``make`` makes in a folder that all workers share, by the first that asks for it."""
    common = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    folder, made = common / name, common / f"{name}.made"
    with (common / f"{name}.lock").open("w") as lock:
        # the kernel unlocks it also where the worker dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            made.write_text(str(make(folder)), "utf-8")
    return Path(made.read_text("utf-8"))


@pytest.fixture(scope="session")
def portagpu_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """portagpu's own wheel, built from this checkout."""
    return made_once(tmp_path_factory, "portagpu-wheel", partial(build_wheel, ROOT))


@pytest.fixture(scope="session")
def portagpu_installed(portagpu_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what portagpu's wheel installs, and nothing else."""
    return made_once(tmp_path_factory, "portagpu-installed", partial(install, portagpu_wheel))


@pytest.fixture
def installed(child: Callable[..., Child], portagpu_installed: Path) -> Callable[..., Child]:
    """Run Python with the wheel's files and its dependencies, and without the checkout.

    ``-S`` leaves out what site-packages adds to the path, such as an editable install.
    """

    def run(*words: str) -> Child:
        libraries = sysconfig.get_path("purelib")
        path = f"{portagpu_installed}:{libraries}"
        return child("-S", *words, environment={"PYTHONPATH": path})

    return run


@pytest.fixture
def search_ranks(ranks: Ranks) -> Ranks:
    """The rank server, from which ranks that search begin at once."""
    from tests.support.search_ranks import prepare

    return prepare(ranks)
