"""Rules of tests/README.md that a program can check, in every file of tests."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, Final

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
    for name in ("time", "monotonic", "perf_counter")
    for unit in ("", "_ns")
    if prefix or name != "time"
}
CORES: Final = {"cpu_count", "process_cpu_count", "sched_getaffinity", "getloadavg"}
"""Functions of os, multiprocessing and psutil."""
BINDS: Final = {"bind", "create_server", "listen"}
WAITING: Final = "support/waits.py"
"""The one place that sleeps below a deadline."""
NOT_TESTS: Final = ("benchmarks/", "support/port_samples/")


@cache
def files() -> dict[str, tuple[ast.Module, list[str]]]:
    """Path below tests -> its syntax tree and lines."""
    folder = ROOT / "tests"
    found = {}
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(folder))
        if not name.startswith(NOT_TESTS):
            text = path.read_text(encoding="utf-8")
            found[name] = ast.parse(text), text.splitlines()
    return found


def number(node: ast.AST | None) -> float | None:
    """A literal number; None of anything else."""
    value = node.value if isinstance(node, ast.Constant) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def limits(tree: ast.AST) -> Iterator[tuple[ast.AST, int, float]]:
    """(what states it, its line, seconds) of every literal limit."""
    for node in ast.walk(tree):
        given: list[tuple[str, ast.AST | None]] = []
        if isinstance(node, ast.Call):
            given = [(each.arg or "", each.value) for each in node.keywords]
            if ast.unparse(node.func).endswith("Limits"):
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
            given = [(ast.unparse(each), node.value) for each in targets]
        for name, value in given:
            seconds = number(value)
            if isinstance(value, ast.expr) and seconds is not None and name.lstrip("_") in LIMITS:
                yield node, value.lineno, seconds


def is_stated(node: ast.AST, lines: list[str]) -> bool:
    """Whether a line of it, or the one before or after it, states the reason."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return REASON in "".join(lines[max(first - 2, 0) : last + 1])


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call, and what is called, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_a_limit_is_a_minute_or_more() -> None:
    """What is over at once, a limit of 0, depends on no load either."""
    short = [
        f"tests/{name}:{line}: a limit of {seconds:g} s"
        for name, (tree, lines) in files().items()
        for node, line, seconds in limits(tree)
        if 0 < seconds < MIN_S
        and not is_stated(node if hasattr(node, "lineno") else ast.Pass(lineno=line), lines)
    ]
    assert not short, (
        f"state {MIN_S} s or more, or end the line with '{REASON}' and why load changes nothing:\n"
        + "\n".join(short)
    )


def test_nothing_sleeps_but_what_is_ended_meanwhile() -> None:
    slept = []
    for name, (tree, lines) in files().items():
        constants = {
            ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
        }
        for call, what in calls(tree):
            if what.rpartition(".")[2] != "sleep" or not call.args or name == WAITING:
                continue
            given = call.args[0]
            if isinstance(given, ast.Name) and given.id in constants:
                given = constants[given.id].value or given
            if (number(given) or 0) < MIN_S and not is_stated(call, lines):
                slept.append(f"tests/{name}:{call.lineno}: {ast.unparse(call)}")
    assert not slept, (
        "wait for what happens, with tests.support.waits.wait_until; a process that is to be ended "
        f"sleeps {MIN_S} s or more; or end the line with '{REASON}' and why:\n" + "\n".join(slept)
    )


def test_no_test_reads_a_clock() -> None:
    read = [
        f"tests/{name}:{call.lineno}: {what}()"
        for name, (tree, lines) in files().items()
        for call, what in calls(tree)
        if what in CLOCKS and name != WAITING and not is_stated(call, lines)
    ]
    assert not read, (
        "give the product a clock that the test moves, or wait with wait_until; or end the line "
        f"with '{REASON}' and why load changes nothing:\n" + "\n".join(read)
    )


def test_no_test_reads_the_cores_or_the_load() -> None:
    read = [
        f"tests/{name}:{call.lineno}: {what}()"
        for name, (tree, lines) in files().items()
        for call, what in calls(tree)
        if what.rpartition(".")[2] in CORES and name != "conftest.py" and not is_stated(call, lines)
    ]
    assert not read, "replace what the product reads with a fake:\n" + "\n".join(read)


def ports(tree: ast.AST) -> Iterator[int]:
    """Lines that choose a port: in what is bound, and in a MASTER_PORT of this process."""
    for call, what in calls(tree):
        bound = call.args[0] if what.rpartition(".")[2] in BINDS and call.args else None
        if isinstance(bound, ast.Tuple) and number(bound.elts[-1]) != 0:
            yield call.lineno
        for each in call.keywords if what.endswith("environ.update") else ():
            if each.arg == "MASTER_PORT" and isinstance(each.value, ast.Constant):
                yield call.lineno
    for node in ast.walk(tree):
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
        for name, (tree, _) in files().items()
        for line in ports(tree)
        if name not in CHOSEN_PORTS
    ]
    assert not chosen, "bind at 0 and hand on the port that is given:\n" + "\n".join(chosen)


BROKEN: Final = """
import time, os, socket
NAP_S = 3
def test_it(limit_s=5):
    thread.join(5)
    run(timeout=2.0)
    {0}(Limits(load_s=1))
    time.sleep(NAP_S)
    while time.monotonic() < 3: pass
    os.cpu_count()
    socket.socket().bind(("", 29500))
    os.environ["MASTER_PORT"] = "29500"
"""


def test_what_the_rules_forbid_is_seen() -> None:
    tree = ast.parse(BROKEN)
    assert sorted(seconds for _, _, seconds in limits(tree)) == [1, 2, 5, 5]
    assert len(list(ports(tree))) == 2
    called = {what for _, what in calls(tree)}
    assert {"time.sleep", "time.monotonic", "os.cpu_count"} <= called
    lines = ["run(timeout=1)", "# allowed: it never ends"]
    assert is_stated(ast.parse(lines[0]).body[0], lines)
    assert not is_stated(ast.parse(lines[0]).body[0], lines[:1])
