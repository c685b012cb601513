"""The pages hold what the code does: links, paths, modules, commands, and every count.

Pages that are written by a program have tests of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from portagpu.results import Evidence, Verdict, exit_code
from tests.conftest import ROOT

PAGES: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "tests" / "formats" / "README.md",
    ]
)
NO_PAGES: Final = ("CHANGELOG.md", "cases.md")
"""One tells of what was, in which names need not exist any more; the other is generated."""

ENTRY_POINTS: Final = frozenset(f"portagpu.{name}" for name in ("backends", "targets", "formats"))


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(line) for line in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is ``first``."""
    lines = iter(text(page).splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, f"{page} has no table that begins with {first!r}"
    return rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_exists(page: Path) -> None:
    if page.name in NO_PAGES:
        return
    prose = re.sub(r"https?://\S+", "", page.read_text("utf-8"))
    named = re.findall(
        r"(?<![\w/.])((?:matrix|tests|docs|portagpu|backends|examples)/[\w./-]+)", prose
    )
    for name in named:
        path = name.rstrip("./-")
        if "<" in name or path.endswith("_") or path == "portagpu/tune":
            continue
        assert (ROOT / path).exists() or _is_a_pattern(page, path), f"{path} does not exist"


def _is_a_pattern(page: Path, path: str) -> bool:
    """Whether the page goes on with a placeholder, or names a schema or folder of a user."""
    after = re.findall(re.escape(path) + r"(.)", page.read_text("utf-8"))
    return bool(re.fullmatch(r"portagpu/(tune|compile|\d+)", path)) or set(after) <= set("<*{")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_and_function_exists(page: Path) -> None:
    if page.name in NO_PAGES:
        return
    pytest.importorskip("torch")
    names = set(re.findall(r"\bportagpu(?:\.[A-Za-z_]\w*)+(?![\w/])", page.read_text("utf-8")))
    for name in sorted(names - ENTRY_POINTS):
        if re.search(r"\.(h|py|toml)$", name):
            continue
        assert _resolves(name), f"{page.name} names {name}, which does not exist"


def _resolves(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            if importlib.util.find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        found: Any = importlib.import_module(module)
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def test_every_option_of_a_command_exists() -> None:
    program = str(Path(sys.executable).with_name("portagpu"))
    helped: dict[str, str] = {}
    for page in PAGES:
        if page.name in NO_PAGES:
            continue
        lines = re.findall(
            r"portagpu (bringup|conform|bench|info|record|occupancy|compile|report)\b([^`|#\n]*)",
            page.read_text("utf-8"),
        )
        for verb, rest in lines:
            if verb not in helped:
                helped[verb] = subprocess.run(
                    [program, verb, "--help"], capture_output=True, text=True, check=True
                ).stdout
            for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", rest.partition(" && ")[0]):
                assert option in helped[verb], f"{page.name}: portagpu {verb} has no {option}"


@pytest.mark.parametrize("page", ["docs/design.md", "docs/results.md"])
def test_exit_codes_are_the_code_s(page: str) -> None:
    rows = {int(row[0]): row[1] for row in table(page, "exit code")}
    assert sorted(rows) == [0, 1, 2, 3, 130]
    for verdict in set(Verdict) - {Verdict.SKIP}:
        assert verdict in rows[exit_code(verdict)]


def test_verdicts_and_badges_are_the_code_s() -> None:
    assert [row[0] for row in table("docs/results.md", "verdict")] == list(Verdict)
    badges = [row[0].strip("`") for row in table("docs/design.md", "badge")]
    assert badges == list(Evidence)
    (row,) = (row for row in _rows("docs/results.md") if row[0] == "`evidence`")
    assert re.findall(r"`(\w+)`", row[2]) == list(Evidence)


def _rows(page: str) -> list[list[str]]:
    lines = [line for line in text(page).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict[str, Any]]]:
    """Architecture -> what is committed of each kernel that was built for it."""
    document = json.loads(text("matrix/compiled.json"))
    return {
        name: [row for row in kernels.values() if "code" in row]
        for name, kernels in document["architectures"].items()
    }


def test_the_numbers_of_kernels_are_those_that_were_compiled(
    compiled: dict[str, list[dict[str, Any]]],
) -> None:
    page = text("docs/kernels.md")
    total = sum(map(len, compiled.values()))
    assert f"the {len(compiled)} architectures" in page
    assert f"({total} kernels)" in page
    triton = {
        name: sum(row["compiler"].startswith("Triton") for row in rows)
        for name, rows in compiled.items()
    }
    with_triton = [name for name, number in triton.items() if number]
    assert f"each of the {len(with_triton)} architectures" in page
    amd = [name for name in with_triton if name.startswith("gfx")]
    assert f"all {sum(triton[name] for name in amd)} Triton kernels" in page


def test_the_table_of_compilers_has_every_architecture(
    compiled: dict[str, list[dict[str, Any]]],
) -> None:
    routes: dict[str, tuple[str, str]] = {}
    for names, triton, cpp in table("docs/kernels.md", "architecture"):
        for name in names.split(", "):
            routes[name] = (triton, cpp)
    assert set(routes) - {"CPUs"} == set(compiled)
    for name, rows in compiled.items():
        used = {row["compiler"].split()[0] for row in rows}
        assert ("Triton" in used) == (routes[name][0] == "yes"), name
        assert used & {"NVRTC", "clang"} == {routes[name][1].split()[0].rstrip(":")}, name


def test_the_table_of_cpp_kernels_has_every_architecture(
    compiled: dict[str, list[dict[str, Any]]],
) -> None:
    rows = [row for row in _rows("docs/kernels-cpp.md") if re.match(r"`(sm_|gfx)\d", row[0])]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert set(compiled) == {name for name in listed if name in compiled}


def test_the_shares_of_the_migration_guide_are_counted() -> None:
    pytest.importorskip("torch")
    from tests.benchmarks import coverage

    page = text("docs/migrating.md")
    uses = coverage.load_uses()
    covered, literal, _ = coverage.shares()
    assert f"{sum(use.uses for use in uses):,} uses" in page
    assert f"{covered:.0%}".replace("%", " %") in page
    assert f"{literal:.0%}".replace("%", " %") in page


def test_the_table_of_gates_is_the_one_that_is_printed() -> None:
    program = str(Path(sys.executable).with_name("portagpu"))
    ended = subprocess.run(
        [program, "bringup", "--list"], capture_output=True, text=True, check=True
    )
    lines = ended.stdout.splitlines()
    gates = [
        [line.split()[0], needs.strip().removeprefix("needs ")]
        for line, needs in zip(lines[::2], lines[1::2], strict=True)
    ]
    assert [[row[0].strip("`"), row[2]] for row in table("docs/bringup.md", "gate")] == gates


def test_the_options_of_bring_up_are_listed() -> None:
    program = str(Path(sys.executable).with_name("portagpu"))
    ended = subprocess.run(
        [program, "bringup", "--help"], capture_output=True, text=True, check=True
    )
    rows = [row[0].strip("`").split()[0] for row in table("docs/bringup.md", "option")]
    assert len(set(rows)) == len(rows)
    missing = [row for row in rows if f" {row}" not in ended.stdout]
    assert not missing, f"bring-up has no {missing}"
