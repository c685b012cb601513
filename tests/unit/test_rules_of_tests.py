"""Rules of tests/README.md that a program can check, in every file of tests."""

from __future__ import annotations

import ast
import gc
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_S: Final = 60
"""A limit for what should never happen."""
LIMITS: Final = {"timeout", "timeout_s", "limit_s", "most_s", "LIMIT_S"}
"""Names of limits, as keywords, parameters and variables."""
WAITS: Final = {"wait", "join", "communicate", "result"}
"""Methods whose first argument is a limit."""
REASON: Final = "# allowed: "
"""What states, at the end of the line of a limit, sleep or clock, why load changes nothing."""
CLOCKS: Final = {
    f"{prefix}{name}{unit}"
    for prefix in ("time.", "")
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
    if prefix or name != "time"
}
CORES: Final = {"cpu_count", "process_cpu_count", "sched_getaffinity", "getloadavg"}
"""Functions of os, multiprocessing and psutil."""
BINDS: Final = {"bind", "create_server", "listen"}
WAITING: Final = "support/waits.py"
"""The one place that sleeps below a deadline."""
NOT_TESTS: Final = ("benchmarks/", "support/contract_1_plugin/", "support/port_samples/")


@pytest.fixture(scope="module", autouse=True)
def _a_million_nodes() -> Iterator[None]:
    """No later test has Python look for garbage among them."""
    gc.disable()
    yield
    files.cache_clear()
    gc.enable()


@dataclass(frozen=True)
class File:
    """A file of tests: its lines, and what is in it."""

    lines: list[str]
    nodes: list[ast.AST]

    @classmethod
    def of(cls, text: str) -> File:
        return cls(text.splitlines(), list(ast.walk(ast.parse(text))))

    @property
    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call, and the dotted name of what is called."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, dotted(node.func)


@cache
def files() -> dict[str, File]:
    """Path below tests -> what is in it."""
    folder = ROOT / "tests"
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.py"))}
    return {
        name: File.of(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if not name.startswith(NOT_TESTS)
    }


def dotted(node: ast.AST) -> str:
    """ "time.sleep" of that expression; of another one as much of its end as is names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def number(node: ast.AST | None) -> float | None:
    """A literal number; None of anything else."""
    value = node.value if isinstance(node, ast.Constant) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def limits(file: File) -> Iterator[tuple[ast.AST, int, float]]:
    """(what states it, its line, seconds) of every literal limit."""
    for node in file.nodes:
        given: list[tuple[str, ast.AST | None]] = []
        if isinstance(node, ast.Call):
            given = [(each.arg or "", each.value) for each in node.keywords]
            if dotted(node.func).endswith("Limits"):
                given = [("limit_s", value) for _, value in given]
            if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS and node.args:
                given.append(("timeout", node.args[0]))
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            defaults = [*[None] * (len(named) - len(node.defaults)), *node.defaults]
            pairs = [*zip(named, defaults, strict=True)]
            pairs += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given = [(each.arg, default) for each, default in pairs]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            given = [(dotted(each), node.value) for each in targets]
        for name, value in given:
            seconds = number(value)
            if isinstance(value, ast.expr) and seconds is not None and name.lstrip("_") in LIMITS:
                yield node, value.lineno, seconds


def is_stated(node: ast.AST, file: File) -> bool:
    """Whether a line of it, or the one before or after it, states the reason."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return REASON in "".join(file.lines[max(first - 2, 0) : last + 1])


def test_a_limit_is_a_minute_or_more() -> None:
    """What is over at once, a limit of 0, depends on no load either."""
    short = [
        f"tests/{name}:{line}: a limit of {seconds:g} s"
        for name, file in files().items()
        for node, line, seconds in limits(file)
        if 0 < seconds < MIN_S
        and not is_stated(node if hasattr(node, "lineno") else ast.Pass(lineno=line), file)
    ]
    assert not short, (
        f"state {MIN_S} s or more, or end the line with '{REASON}' and why load changes nothing:\n"
        + "\n".join(short)
    )


def test_nothing_sleeps_but_what_is_ended_meanwhile() -> None:
    slept = []
    for name, file in files().items():
        constants = {
            dotted(node.targets[0] if isinstance(node, ast.Assign) else node.target): node
            for node in file.nodes
            if isinstance(node, ast.Assign | ast.AnnAssign)
        }
        for call, what in file.calls:
            if what.rpartition(".")[2] != "sleep" or not call.args or name == WAITING:
                continue
            given = call.args[0]
            if isinstance(given, ast.Name) and given.id in constants:
                given = constants[given.id].value or given
            if (number(given) or 0) < MIN_S and not is_stated(call, file):
                slept.append(f"tests/{name}:{call.lineno}: {ast.unparse(call)}")
    assert not slept, (
        "wait for what happens, with tests.support.waits.wait_until; a process that is to be ended "
        f"sleeps {MIN_S} s or more; or end the line with '{REASON}' and why:\n" + "\n".join(slept)
    )


def test_no_test_reads_a_clock() -> None:
    read = [
        f"tests/{name}:{call.lineno}: {what}()"
        for name, file in files().items()
        for call, what in file.calls
        if what in CLOCKS and name != WAITING and not is_stated(call, file)
    ]
    assert not read, (
        "give the product a clock that the test moves, or wait with wait_until; or end the line "
        f"with '{REASON}' and why load changes nothing:\n" + "\n".join(read)
    )


def test_no_test_reads_the_cores_or_the_load() -> None:
    read = [
        f"tests/{name}:{call.lineno}: {what}()"
        for name, file in files().items()
        for call, what in file.calls
        if what.rpartition(".")[2] in CORES and name != "conftest.py" and not is_stated(call, file)
    ]
    assert not read, "replace what the product reads with a fake:\n" + "\n".join(read)


def ports(file: File) -> Iterator[int]:
    """Lines that choose a port: in what is bound, and in a MASTER_PORT of this process."""
    for call, what in file.calls:
        bound = call.args[0] if what.rpartition(".")[2] in BINDS and call.args else None
        if isinstance(bound, ast.Tuple) and number(bound.elts[-1]) != 0:
            yield call.lineno
        for each in call.keywords if what.endswith("environ.update") else ():
            if each.arg == "MASTER_PORT" and isinstance(each.value, ast.Constant):
                yield call.lineno
    for node in file.nodes:
        targets = node.targets if isinstance(node, ast.Assign) else []
        stated = any("MASTER_PORT" in ast.unparse(each) for each in targets)
        if stated and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield node.lineno


CHOSEN_PORTS: Final = {
    "ranks/test_comm_init.py": "the port of another program is taken by the test, to be refused",
    "support/slurm_cluster.py": "slurm.conf states the ports of all nodes before any is started",
}


def test_ports_are_bound_at_0() -> None:
    chosen = [
        f"tests/{name}:{line}"
        for name, file in files().items()
        for line in ports(file)
        if name not in CHOSEN_PORTS
    ]
    assert not chosen, "bind at 0 and hand on the port that is given:\n" + "\n".join(chosen)


DEFAULT: Final = ("unit/", "vendor_texts/", "torch/", "ranks/", "process/", "pages/")
"""The folders of the default tier."""


@cache
def modules() -> frozenset[str]:
    """Every module of the product."""
    found = set()
    for top in (ROOT / "portagpu", ROOT / "backends"):
        for path in top.rglob("*.py"):
            parts = path.relative_to(ROOT if top.name == "portagpu" else top).with_suffix("").parts
            found.add(".".join(parts).removesuffix(".__init__"))
    return frozenset(found)


def named(file: File) -> set[str]:
    """Dotted names that a file imports, or has in a text, such as "module:function"."""
    found: set[str] = set()
    for node in file.nodes:
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", node.value))
    return found


def with_packages(name: str) -> Iterator[str]:
    """A name and what it is in, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def modules_named_in(folders: tuple[str, ...]) -> set[str]:
    """Modules of the product that tests of these folders name, and the support that they import."""
    all_files = {f"tests.{name[:-3].replace('/', '.')}": each for name, each in files().items()}
    prefixes = tuple(f"tests.{folder.replace('/', '.')}" for folder in folders)
    waiting = [name for name in all_files if name.startswith(prefixes)]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        for each in named(all_files[name]):
            whole = list(with_packages(each))
            waiting += [part for part in whole if part in all_files]
            # a package is named with what is in it
            found.update(part for part in whole if part in modules())
    return found


def test_what_a_higher_tier_tests_the_default_tier_tests_too() -> None:
    """Of a module that changes, ``pytest`` alone says whether it still works at all."""
    untested = modules_named_in(("full/", "deep/")) - modules_named_in(DEFAULT)
    assert not untested, f"no test of the default tier names {', '.join(sorted(untested))}"
    assert len(modules_named_in(DEFAULT)) > len(modules()) / 3, "the names are not found"


BROKEN: Final = """
import time, os, socket
NAP_S = 3
def test_it(limit_s=5):
    thread.join(5)
    run(timeout=2.0)
    replace(Limits(load_s=1))
    time.sleep(NAP_S)
    while time.monotonic() < 3: pass
    os.cpu_count()
    socket.socket().bind(("", 29500))
    os.environ["MASTER_PORT"] = "29500"
"""


def test_what_the_rules_forbid_is_seen() -> None:
    file = File.of(BROKEN)
    assert sorted(seconds for _, _, seconds in limits(file)) == [1, 2, 5, 5]
    assert len(list(ports(file))) == 2
    called = {what for _, what in file.calls}
    assert {"time.sleep", "time.monotonic", "os.cpu_count"} <= called
    for text, stated in (("run(timeout=1)\n", False), (f"run(timeout=1)\n{REASON}x\n", True)):
        other = File.of(text)
        assert is_stated(next(call for call, _ in other.calls), other) is stated
