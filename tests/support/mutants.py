"""A mutation run: ``python -m tests.support.mutants [--seed N] [--count N] [--files A ...]``.

Draws mutants of the product by a seed, files by their lines, with the operators of cosmic-ray. Each
is installed in a copy of the checkout, and runs against the test files that import its module, the
nearest first. What survives these runs against the whole tiers of unit tests, vendors' texts and
torch. Prints a line for each mutant, and the survivors with their difference at the end. What
``from __future__ import annotations`` never runs (types) is not mutated.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS: Final = ("unit", "vendor_texts", "torch", "ranks", "process", "pages")
WHOLE: Final = ("tests/unit", "tests/vendor_texts", "tests/torch")
LIMIT_S: Final = 900
NEAREST: Final = 8
"""How many files of tests a mutant meets before the whole tiers."""
OPERATORS: Final = (
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceBinaryOperator",
    "ReplaceBreakWithContinue",
    "ReplaceComparisonOperator",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator",
    "ZeroIterationForLoop",
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


class _WithoutTypes(ast.NodeTransformer):
    """Leaves out what no run evaluates."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def _runs(source: str) -> str:
    return ast.dump(_WithoutTypes().visit(ast.parse(source)))


def product_files() -> list[str]:
    """Every Python file of the product, relative to the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "portagpu/*.py", "backends/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(listed.stdout.split())


def draw(seed: int, count: int, files: list[str]) -> Iterator[Mutant]:
    """As many mutants, none of them twice."""
    from cosmic_ray import mutating, plugins

    chosen = random.Random(seed)  # noqa: S311 - a draw that can be repeated
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    weights = [sources[file].count("\n") for file in files]
    names = [
        name for name in plugins.operator_names() if name.partition("/")[2].startswith(OPERATORS)
    ]
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        (file,) = chosen.choices(files, weights)
        kind = chosen.choice(OPERATORS)
        name = chosen.choice([name for name in names if name.partition("/")[2].startswith(kind)])
        operator = plugins.get_operator(name)
        found = []
        for place in range(200):
            after = mutating.mutate_code(sources[file], operator(), place)
            if after is None:
                break
            found.append(after)
        if not found:
            continue
        after = chosen.choice(found)
        if (file, after) in seen or _runs(after) == _runs(sources[file]):
            continue
        seen.add((file, after))
        yield Mutant(file, name, sources[file], after)


def module_name(file: str) -> str:
    """ "portagpu.documents" of "portagpu/documents.py"."""
    parts = Path(file).with_suffix("").parts
    parts = parts[1:] if parts[0] == "backends" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports(path: Path) -> frozenset[str]:
    """Dotted names that a file imports or names in a string."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith(("portagpu", "tests.")):
            found.add(str(node.value).partition(":")[0])
    return frozenset(found)


def nearest_tests(file: str) -> list[str]:
    """The test files that import a module, bear its name, or import its package; cheap first."""
    module = module_name(file)
    package, _, name = module.rpartition(".")
    about = {name.strip("_"), package.rpartition(".")[2]} - {"portagpu", "cli"}
    scores: dict[str, int] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            names = _imports(path)
            score = 4 * (module in names) + 2 * any(each in path.stem for each in about)
            score += (
                any(f"{each}.".startswith(f"{package}.") for each in names)
                and package != "portagpu"
            )
            if score:
                scores[str(path.relative_to(ROOT))] = score
    return sorted(scores, key=lambda each: -scores[each])[:NEAREST]


def _outcome(copy: Path, *words: str) -> bool:
    """Whether the tests fail; also where they take too long."""
    path = os.pathsep.join([str(copy), str(copy / "backends")])
    given = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *words]
    try:
        ended = subprocess.run(
            command, cwd=copy, env=given, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode not in (0, 5)


def main() -> int:
    """Draw, run and print; the exit code is 0 whatever survives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**8))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every N-th mutant from K on")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    first, every = map(int, given.share.split("/"))
    print(f"seed {given.seed}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="portagpu-mutants-") as folder:
        copy = Path(folder) / "copy"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        for number, mutant in enumerate(draw(given.seed, given.count, product_files())):
            if number % every != first:
                continue
            (copy / mutant.file).write_text(mutant.after, encoding="utf-8")
            near = nearest_tests(mutant.file)
            by = "near" if near and _outcome(copy, *near) else ""
            by = by or ("whole" if _outcome(copy, "-n", "2", *WHOLE) else "")
            (copy / mutant.file).write_text(mutant.before, encoding="utf-8")
            print(f"{number:3d} {by or 'SURVIVED':8s} {mutant.operator} {mutant.file}", flush=True)
            rows.append({"file": mutant.file, "caught": by, "difference": mutant.difference})
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    survivors = [row for row in rows if not row["caught"]]
    for row in survivors:
        print(row["difference"])
    print(f"{len(rows) - len(survivors)} of {len(rows)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
