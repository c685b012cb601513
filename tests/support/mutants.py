"""A mutation run: ``python -m tests.support.mutants [--seed N] [--count N] [--share K/N] ...``.

Draws mutants of the product by a seed, files by their lines, with the operators of cosmic-ray. In a
clone of the commit, a mutant first meets the nearest files of the tests that start no process, and
the golden files that execute its lines; one of what an import executes meets the tests that read
sources too. What survives meets all other tests that start no process and execute its lines, the
cheap ones first, then the nearest files of those that start processes, and at last the nearest
ones of the tier "full". Coverage by test is measured once for a commit of the product: of the
golden files at first, of all others where a mutant gets as far. Prints a line for each mutant and
stage. A run of tests that gave no answer counts as caught only if it gives one
without the mutant. At the end, the tests that caught one run without a mutant, and survivors are
printed with their difference. What ``from __future__ import annotations`` never runs (types) is not
mutated.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fcntl
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

FAST: Final = ("unit", "vendor_texts", "torch")
"""Folders whose tests run in the process that coverage sees."""
OF_SOURCES: Final = (
    "tests/unit/test_public_surface.py",
    "tests/full/test_rules_of_dataclasses.py",
    "tests/unit/base/test_patience_limits.py",
    "tests/pages/test_pages.py::test_what_is_generated_is_current[docs/book/cli.md]",
)
"""Tests that read what only an import executes: coverage says nothing of them."""
GOLDEN: Final = tuple(f"tests/{folder}/test_golden.py" for folder in FAST)
STAGES: Final = {
    "near": (FAST, 3),
    "executing": (FAST, 3),
    "processes": (("process", "ranks", "pages"), 2),
    "full": (("full",), 1),
}
"""What a mutant meets as long as it survives: folders of tests, and how many of their files that
are near."""
LIMIT_S: Final = 600
CPU_LIMIT_S: Final = 180
"""Of one process, so that an endless loop ends by its own time and not by the load."""
MAX_TESTS: Final = 100
MAX_TESTS_S: Final = 30
"""CPU seconds of the chosen tests."""
OPERATORS: Final = (
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceComparisonOperator"),
    *("NumberReplacer", "ReplaceFalseWithTrue", "ReplaceTrueWithFalse"),
    *("ReplaceBinaryOperator", "ReplaceUnaryOperator", "ExceptionReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)
"""Kinds of cosmic-ray's operators, of which each has several."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    file: str
    operator: str
    before: str
    after: str

    @property
    def difference(self) -> str:
        """The changed lines, as ``diff -u`` without context."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), self.file, self.file, "", "", 0, ""
        )
        return "\n".join(lines)

    @property
    def line(self) -> int:
        """The first line that differs."""
        pairs = zip(self.before.splitlines(), self.after.splitlines(), strict=False)
        return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)

    @property
    def names(self) -> list[str]:
        """Of the functions and classes that it is in."""
        around = enclosing(self.before, self.line)
        return [
            node.name for node, *_ in around if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]


def _runs(source: str) -> str:
    """The syntax tree without the types, which no run evaluates."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in {"annotation", "returns"}.intersection(node._fields):
            setattr(node, field, None)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return ast.dump(tree)


def _git(*words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout.strip()


def product_files() -> list[str]:
    """Every Python file of the product, relative to the checkout."""
    return sorted(_git("ls-files", "portagpu/*.py", "backends/*.py").split())


def draw(seed: int, count: int, files: list[str]) -> Iterator[Mutant]:
    """As many mutants, none of them twice."""
    from cosmic_ray import mutating, plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    chosen = random.Random(seed)  # noqa: S311 - a draw that can be repeated
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    weights = [sources[file].count("\n") for file in files]
    names = sorted(plugins.operator_names())  # of a set
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        (file,) = chosen.choices(files, weights)
        kind = chosen.choice(OPERATORS)
        name = chosen.choice([name for name in names if name.partition("/")[2].startswith(kind)])
        operator = plugins.get_operator(name)()
        try:
            nodes = ast_nodes(get_ast(sources[file]))
            places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            if not places:
                continue
            after = mutating.mutate_code(sources[file], operator, chosen.randrange(places))
            same = _runs(after) == _runs(sources[file])
        except (AttributeError, SyntaxError):
            continue  # cosmic-ray fails at `except a.b`, and takes `**x` for a power
        if same or (file, after) in seen:
            continue
        seen.add((file, after))
        yield Mutant(file, name, sources[file], after)


def _pytest(
    folder: Path, words: Iterable[str], limit_s: int = LIMIT_S, **variables: str
) -> dict[str, tuple[float, bool]]:
    """CPU seconds of each test that ran in a checkout, and whether it passed.

    Without an answer, the run itself is the one test, which failed.
    """
    path = [str(folder), str(folder / "backends"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory(prefix="portagpu-tests-") as place:
        report, costs = Path(place, "report.xml"), Path(place, "costs.tsv")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        try:
            subprocess.run(
                ["prlimit", f"--cpu={limit_s * CPU_LIMIT_S // LIMIT_S}", *command,
                 f"--junitxml={report}", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "TEST_COSTS": str(costs),
                     **variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=limit_s,
                check=False,
            )  # fmt: skip
            cases = [*ElementTree.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it
        except (subprocess.TimeoutExpired, OSError, ElementTree.ParseError) as error:
            return {type(error).__name__: (0.0, False)}
        spent = {}
        for line in costs.read_text("utf-8").splitlines() if costs.exists() else ():
            name, own, children, _ = line.rsplit("\t", 3)
            spent[name] = float(own) + float(children)
        return {
            (name := _node_id(case)): (
                spent.get(name, float(case.get("time", 0))),
                case.find("failure") is None and case.find("error") is None,
            )
            for case in cases
        }


def _node_id(case: ElementTree.Element) -> str:
    """What the command line calls a test, or a file that could not be collected, of a report."""
    names = [case.get("classname", ""), case.get("name", "")]
    if not names[0]:
        names.reverse()
    parts = names[0].split(".")
    length = next((n for n, part in enumerate(parts, 1) if part.startswith("test_")), len(parts))
    return "::".join(filter(None, ["/".join(parts[:length]) + ".py", *parts[length:], names[1]]))


def enclosing(source: str, line: int) -> list[tuple[ast.AST, int, int]]:
    """The statements that a line belongs to, from the outermost one, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):  # breadth first
        if isinstance(node, ast.stmt | ast.excepthandler):
            decorators = getattr(node, "decorator_list", ())
            first = min(each.lineno for each in (node, *decorators))
            if first <= line <= (last := node.end_lineno or first):
                found.append((node, first, last))
    return found


def _words(name: str) -> set[str]:
    """The words of a file's name or path, in the singular."""
    return {each.removesuffix("s") for each in re.findall(r"[a-z0-9]+", name)} - {"portagpu", "py"}


def nearest_tests(
    file: str, folders: Iterable[str], count: int, names: Collection[str] = ()
) -> list[str]:
    """The test files that import a module or name its package, or have words of its path.

    Of these, those are nearer that use one of the ``names`` of a part of the module.
    """
    parts = Path(file.removeprefix("backends/").removesuffix("/__init__.py")).with_suffix("").parts
    package, name = ".".join(parts[:-1]), parts[-1]
    imports = re.compile(rf"\b{package}(\.| import (.*[ (,])?){name}\b")
    mine, scores = _words(file.removeprefix("backends/")), {}
    for path in (path for each in folders for path in (ROOT / "tests" / each).rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        score = 4 * (imports.search(text) is not None)
        score += package != "portagpu" and re.search(rf"\b{package}\b", text) is not None
        theirs = _words(path.stem) - {"test"}
        if both := len(mine & theirs):
            score += 2 * both + both / len(theirs)
        if score and names:
            score += 2 * (re.search(rf"\b({'|'.join(names)})\b", text) is not None)
        if score:
            scores[str(path.relative_to(ROOT))] = score
    return sorted(scores, key=lambda each: (-scores[each], each))[:count]


def cheap_tests() -> list[str]:
    """The files of the folders FAST."""
    paths = [path for each in FAST for path in (ROOT / "tests" / each).rglob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def changed_tests(commit: str) -> list[str]:
    """The files of cheap tests that changed since a commit, or name a helper that did."""
    changed = _git("diff", "--name-only", commit, "HEAD", "--", "tests").split()
    stems = {Path(each).stem for each in changed if each.startswith("tests/support/")}
    if any("/golden" in each for each in changed):
        stems.add("golden")
    return [
        file
        for file in cheap_tests()
        if file in changed
        or stems.intersection(
            re.findall(r"support(?:\.| import )(\w+)", (ROOT / file).read_text("utf-8"))
        )
    ]


class Baseline:
    """Which tests execute which lines of a commit of the product, and their seconds.

    Kept in ``build/mutants``. At a later commit, test files run again that changed, or whose
    helpers did.
    """

    def __init__(self) -> None:
        from coverage import CoverageData

        self._tests: dict[str, tuple[float, bool]] = {}
        self._data = CoverageData(no_disk=True)

    def measure(self, files: Collection[str]) -> None:
        """Know these files of tests."""
        from coverage import CoverageData

        commit = _git("log", "-1", "--format=%h", "--", "portagpu", "backends")
        folder = ROOT / "build" / "mutants"
        folder.mkdir(parents=True, exist_ok=True)
        kept, part = folder / f"{commit}.json", folder / "part.coverage"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._data = CoverageData(str(folder / f"{commit}.coverage"))
            self._data.read()
            at, measured, self._tests = (
                json.loads(kept.read_text("utf-8")) if kept.exists() else ("HEAD", [], {})
            )
            current = {*measured}.difference(changed_tests(at))
            if missing := sorted({*files} - current):
                print(f"measuring {len(missing)} files of tests, once", flush=True)
                part.unlink(missing_ok=True)
                words = "-n 2 --dist loadfile --cov=portagpu --cov=backends --cov-report="
                found = _pytest(
                    ROOT,
                    [*missing, *words.split(), "--cov-context=test"],
                    limit_s=8 * LIMIT_S,
                    COVERAGE_FILE=str(part),
                )
                if not part.exists():
                    sys.exit(f"these tests ended without coverage: {found}")
                new = CoverageData(str(part))
                new.read()
                self._data.update(new)
                current.update(missing)
                self._tests = found | {
                    name: each
                    for name, each in self._tests.items()
                    if name.partition("::")[0] in current.difference(missing)
                }
                state = [_git("rev-parse", "HEAD"), sorted(current), self._tests]
                kept.write_text(json.dumps(state), encoding="utf-8")

    def _executing(self, mutant: Mutant, files: Collection[str]) -> tuple[set[str], bool]:
        """Tests of ``files`` that passed and execute a mutant, and whether only imports do.

        What only an import executes is executed by the tests of what it belongs to.
        """
        contexts = self._data.contexts_by_lineno(str(ROOT / mutant.file))
        around = enclosing(mutant.before, mutant.line)
        of_import = not any(isinstance(node, ast.FunctionDef) for node, *_ in around[:-1])
        if of_import:
            places = [(first, last) for _, first, last in reversed(around)]
            places.append((1, mutant.before.count("\n")))
        else:
            node, first, last = around[-1]
            if body := getattr(node, "body", None):
                last = max(first, body[0].lineno - 1)
            places = [(first, last)]
        for first, last in places:
            names = chain.from_iterable(contexts.get(line, ()) for line in range(first, last + 1))
            tests = {each.rpartition("|")[0] for each in names}
            if found := {
                each
                for each in tests.intersection(self._tests)
                if self._tests[each][1] and each.partition("::")[0] in files
            }:
                return found, of_import
        return set(), of_import

    def _some(self, tests: set[str]) -> list[str]:
        """Of each function some, the cheap ones first, up to the limits."""
        functions = defaultdict(list)
        for test in sorted(tests, key=lambda each: (self._tests[each], each)):
            functions[test.partition("[")[0]].append(test)
        found: list[str] = []
        spent_s = 0.0
        for test in filter(None, chain.from_iterable(zip_longest(*functions.values()))):
            spent_s += self._tests[test][0]
            if found and (len(found) == MAX_TESTS or spent_s > MAX_TESTS_S):
                break
            found.append(test)
        # a file after the other
        return sorted(found, key=lambda each: each.partition("::")[0])

    def tests(self, mutant: Mutant, stage: str) -> list[str]:
        """Those that a mutant meets in a stage."""
        near = nearest_tests(mutant.file, *STAGES[stage], mutant.names)
        if stage == "near":
            found, of_import = self._executing(mutant, GOLDEN)
            sources = OF_SOURCES if of_import else ()
            return [*sources, *(each for each in near if each not in GOLDEN), *self._some(found)]
        if stage == "executing":
            others = {*cheap_tests()}.difference(near, GOLDEN)
            return self._some(self._executing(mutant, others)[0])
        return near


def caught_by(copy: Path, mutant: Mutant, number: int, tests: list[str]) -> str:
    """The first of the tests that fails with a mutant."""
    if not tests:
        return ""
    place = copy / mutant.file
    place.write_text(mutant.after, encoding="utf-8")
    # a time of its own, or Python runs what it has compiled
    os.utime(place, (number + 1, number + 1))
    # a mutant may change the parameters of tests, and so their names
    found = _pytest(copy, ["-x", *tests]) or _pytest(
        copy, ["-x", *dict.fromkeys(each.partition("[")[0] for each in tests)]
    )
    place.write_text(mutant.before, encoding="utf-8")
    os.utime(place, (0, 0))
    by = next((name for name, (_, passed) in found.items() if not passed), "")
    if by and not by.startswith("tests/"):
        alone = _pytest(copy, ["-x", *tests])
        if not all(passed for _, passed in alone.values()):
            return ""
    return by


def main() -> int:
    """Draw, run and print; the exit code is 0 whatever survives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**8))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every N-th mutant from K on")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of them, with commas")
    parser.add_argument("--only", default="", metavar="N,N", help="these of the drawn ones alone")
    given = parser.parse_args()
    first, every = map(int, given.share.split("/"))
    if _git("status", "--porcelain", "--", "portagpu", "backends", "tests"):
        parser.error("a mutation run is of a commit: commit your changes first")
    print(f"seed {given.seed}", flush=True)
    drawn = [*enumerate(draw(given.seed, given.count, product_files()))][first::every]
    if only := {*map(int, filter(None, given.only.split(",")))}:
        drawn = [each for each in drawn if each[0] in only]
    baseline, caught = Baseline(), dict.fromkeys((number for number, _ in drawn), "")
    measured = {"near": GOLDEN, "executing": cheap_tests()}
    with tempfile.TemporaryDirectory(prefix="portagpu-mutants-") as folder:
        copy = Path(folder) / "copy"
        _git("clone", "--quiet", str(ROOT), str(copy))
        for stage in given.stages.split(","):
            if all(caught.values()):
                break
            print(f"{stage}:", flush=True)
            if stage in measured:
                baseline.measure(measured[stage])
            for number, mutant in drawn:
                if caught[number]:
                    continue
                by = caught_by(copy, mutant, number, baseline.tests(mutant, stage))
                caught[number] = by
                print(
                    f"{number:3d} {mutant.operator} {mutant.file}:{mutant.line}: "
                    f"{by or 'survives'}",
                    flush=True,
                )
        proofs = sorted({by for by in caught.values() if by.startswith("tests/")})
        for name, (_, passed) in _pytest(copy, proofs).items() if proofs else ():
            if not passed:
                print(f"fails without a mutant too, and shows nothing: {name}")
    for number, mutant in drawn:
        if not caught[number]:
            print(mutant.difference)
    print(f"{sum(map(bool, caught.values()))} of {len(caught)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
