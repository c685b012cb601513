"""The pages hold what the code does: links, paths, modules, commands, and every count.

Pages that are written by a program have tests of their own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import json
import re
import tokenize
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.plugins import PACKAGES, PARTS
from portagpu.runs.results.run import Evidence, Result, Verdict, exit_code, new_run
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs

PAGES: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/book").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "tests" / "vendor_texts" / "formats" / "README.md",
    ]
)
NO_PAGES: Final = ("CHANGELOG.md", "cases.md")
"""One says what was, in which names need not exist any more; the other is generated."""
INTERNAL: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "design.md", "new-vendors.md", "design.md")
"""Pages for those who change the code: they may name modules that are not public."""

NOT_MODULES: Final = frozenset(
    {*PARTS, PACKAGES, "portagpu_example.targets", "portagpu.collective"}
)
"""Groups of entry points, an example's module, and the domain of annotated collectives."""


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(line) for line in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def table(page: str, first: str, under: str = "") -> list[list[str]]:
    """The rows of the first table below ``under`` whose first heading is ``first``."""
    lines = iter(text(page).partition(under)[2].splitlines() if under else text(page).splitlines())
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
    wrong = names_that_do_not_exist(page.read_text("utf-8"))
    assert not wrong, f"{page.name} names what does not exist"


def names_that_do_not_exist(text: str) -> list[str]:
    return sorted(name for name in named_in(text) if not _resolves(name))


def named_in(text: str) -> set[str]:
    """The modules, and names in them, that a text names in full."""
    named = set(
        re.findall(r"(?<![\w/.-])portagpu(?:_\w+)?(?:\.[A-Za-z_]\w*)+(?![\w/]|-\w+/\d)", text)
    )
    return {name for name in named - NOT_MODULES if not re.search(r"\.(h|py|toml)$", name)}


def public_modules() -> list[str]:
    """The list of docs/design.md."""
    part = text("docs/design.md").partition("## Public modules\n")[2].partition("\n## ")[0]
    return re.findall(r"`(portagpu(?:\.\w+)*)`", part)


def internal_names(text: str, public: list[str]) -> list[str]:
    """The names in ``text`` that are neither those of a public module nor commands."""
    text = re.sub(r"from (portagpu[\w.]*) import (\w+)", r"\1.\2", text).replace("\\_", "_")
    commands = re.findall(r" -m (portagpu[\w.]+)", text)
    top = [f"portagpu.{name}" for name in importlib.import_module("portagpu").__all__]
    known = [name for name in public if name != "portagpu"] + top + commands
    return sorted(
        name
        for name in named_in(text)
        if name.startswith("portagpu.")
        and not any(f"{name}.".startswith(f"{each}.") for each in known)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_public_modules_only(page: Path) -> None:
    if page.name not in INTERNAL:
        found = internal_names(page.read_text("utf-8"), public_modules())
        assert not found, f"{page.name}: docs/design.md does not list these as public"


def test_examples_import_public_modules_only() -> None:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        found = internal_names(path.read_text("utf-8"), public_modules())
        assert not found, f"{path.relative_to(ROOT)}: docs/design.md does not list these as public"


def test_the_public_modules_exist() -> None:
    public = public_modules()
    assert len(set(public)) == len(public)
    next_to_rooms = {path.stem for path in (ROOT / "portagpu").glob("[!_]*.py")}
    assert {f"portagpu.{name}" for name in next_to_rooms} <= {*public}
    for name in public:
        assert importlib.util.find_spec(name) is not None, name


def test_an_internal_module_on_a_page_is_found() -> None:
    page = """`portagpu.devices.registry.handle_for` and `pg.backend()`, `portagpu.backend("cpu")`,
    `python -P -m portagpu.reports.proofs a`, `portagpu.info/1`, portagpu.parallel.shard"""
    assert internal_names(page, public_modules()) == ["portagpu.devices.registry.handle_for"]


def test_no_schema_is_named_by_a_room() -> None:
    """Ids of schemas are of contract 1: they stay where a module moves."""
    rooms = "|".join(path.parent.name for path in (ROOT / "portagpu").glob("*/__init__.py"))
    for path in sorted((ROOT / "portagpu").rglob("*.py")):
        found = re.findall(rf"\bportagpu\.(?:{rooms})[\w.-]*/\d", path.read_text("utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: the id of a schema begins with a room"


def prose(path: Path) -> str:
    """The comments and docstrings of a module."""
    text = path.read_text("utf-8")
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [each.value for each in strings if isinstance(each, ast.Constant)]
    found += [each.string for each in tokens if each.type == tokenize.COMMENT]
    return re.sub(r"https?://\S+", "", "\n".join(map(str, found)))


@pytest.mark.parametrize("folder", ["backends", "matrix", "examples"])
def test_what_docstrings_and_comments_name_exists(folder: str) -> None:
    named_things_exist(folder)


def named_things_exist(folder: str) -> None:
    pytest.importorskip("torch")
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        words, code = prose(path), path.read_text("utf-8")
        stale = names_that_do_not_exist(words)
        for name in re.findall(r":(?:mod|func|class|data|meth|attr|exc):`~?([\w.]+)`", words):
            if not re.search(rf"(?<!`){name.rpartition('.')[2]}\b(?!`)", code) and not _resolves(
                name
            ):
                stale.append(name)
        files = re.findall(r"(?<![\w/.])(?:matrix|tests|docs|portagpu)/[\w/.-]+\.\w+", words)
        stale += [name for name in files if not (ROOT / name).exists()]
        wrong += [f"{path.relative_to(ROOT)} names {name}" for name in stale]
    assert not wrong


def _resolves(name: str) -> bool:
    """Whether each part is a name of what is before it, or a module in it."""
    first, *parts = name.split(".")
    if importlib.util.find_spec(first) is None:
        return False
    found: Any = importlib.import_module(first)
    for part in parts:
        if hasattr(found, part):
            found = getattr(found, part)
        elif importlib.util.find_spec(f"{getattr(found, '__name__', '')}.{part}") is not None:
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            return False
    return True


def test_every_option_of_a_command_exists(verbs: ForkedVerbs) -> None:
    helped: dict[str, str] = {}
    for page in PAGES:
        if page.name in NO_PAGES:
            continue
        lines = re.findall(
            r"portagpu (bringup|conform|bench|info|record|occupancy|plan|compile|report)\b"
            r"([^`|#\n]*)",
            page.read_text("utf-8"),
        )
        for verb, rest in lines:
            if verb not in helped:
                helped[verb] = verbs(verb, "--help").ok()
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


def test_the_shares_of_the_migration_guide_are_counted() -> None:
    pytest.importorskip("torch")
    from tests.benchmarks import coverage

    page = text("docs/migrating.md")
    uses = coverage.load_uses()
    covered, literal, _ = coverage.shares()
    assert f"{sum(use.uses for use in uses):,} uses" in page
    assert f"{covered:.0%}".replace("%", " %") in page
    assert f"{literal:.0%}".replace("%", " %") in page


def test_the_table_of_gates_is_the_one_that_is_printed(verbs: ForkedVerbs) -> None:
    lines = verbs("bringup", "--list").ok().splitlines()
    gates = [
        [line.split()[0], needs.strip().removeprefix("needs ")]
        for line, needs in zip(lines[::2], lines[1::2], strict=True)
    ]
    assert [[row[0].strip("`"), row[2]] for row in table("docs/bringup.md", "gate")] == gates


def test_the_options_of_bring_up_are_listed(verbs: ForkedVerbs) -> None:
    helped = verbs("bringup", "--help").ok()
    rows = [row[0].strip("`").split()[0] for row in table("docs/bringup.md", "option")]
    assert len(set(rows)) == len(rows)
    missing = [row for row in rows if f" {row}" not in helped]
    assert not missing, f"bring-up has no {missing}"


def names_of(rows: list[list[str]]) -> set[str]:
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_the_keys_of_a_result_are_those_that_are_written() -> None:
    run = new_run(["portagpu", "bench"], target=None)
    reference = {"reference": 1.0, "lower": None, "upper": None, "unit": "1", "source": "here"}
    run.add(
        Result(
            id="memory/copy",
            suite="performance",
            area="memory",
            verdict=Verdict.UNVERIFIED,
            value=1.0,
            unit="1",
            expected=reference,
        )
    )
    run.finish()
    stream = io.StringIO()
    run.dump(stream)
    document = json.loads(stream.getvalue())
    page = "docs/results.md"
    assert names_of(table(page, "key", "## The document")) == set(document)
    assert names_of(table(page, "key", "## `run`")) == set(document["run"])
    (result,) = document["results"]
    assert names_of(table(page, "key", "## `results[]`")) == set(result)
    stated = names_of(table(page, "key", "`expected` has the form"))
    assert set(result["expected"]) <= stated
    for optional in ("statistic", "shape", "algorithm", "software", "confidence"):
        assert optional in stated


def test_the_keys_of_info_are_those_that_are_written(verbs: ForkedVerbs) -> None:
    recording = ROOT / "tests/vendor_texts/formats/nvidia_smi_xml/v11-mig-throttled.xml"
    document = json.loads(verbs("info", "--replay", str(recording), "--json", "-").ok())
    under = text("docs/machine.md").partition("## JSON")[2]
    named = set(re.findall(r"`(\w+)`", under.partition("New versions")[0]))
    parts = {"parts", "indices", "sources", "disagreements", "settings"}
    assert named - parts <= set(document)
    assert parts - {"settings"} <= set(document["gpus"][0])
    example = set(re.findall(r'(?:machine|gpu)\["(\w+)"\]', under))
    assert example - {"gpus"} <= set(document["gpus"][0])


@pytest.mark.parametrize(
    ("page", "area"), [("docs/health.md", "health"), ("docs/machine.md", "links")]
)
def test_the_rules_are_those_that_can_fail(page: str, area: str) -> None:
    """The page of failures is written by a program, which knows every check."""
    known = set(re.findall(rf"`{area}/([a-z-]+)`", text("docs/when-it-fails.md")))
    rules = {row[0].strip("`") for row in table(page, "name", "## Rules")}
    assert rules <= known
    elsewhere = {"host-memory-errors", "host-temperature", "host-throttling", "devices", "numa"}
    assert known - rules <= elsewhere, f"{page} has no row for {known - rules - elsewhere}"


def test_the_areas_of_bench_are_the_files() -> None:
    files = {path.stem for path in (ROOT / "matrix" / "performance").glob("[a-z]*.py")}
    page = text("docs/performance.md")
    named = set(re.findall(r"`(\w+)`", page.partition("name areas (")[2].partition(")")[0]))
    assert named == files
    ids = {row[0].partition("/")[0].strip("`") for row in table("docs/performance.md", "id")}
    assert ids == files


def test_the_confidences_are_the_code_s() -> None:
    from portagpu.facts.targets import Confidence

    assert [row[0].strip("`") for row in table("docs/targets.md", "confidence")] == list(Confidence)


def test_the_rules_between_facts_exist() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "portagpu").rglob("*.py"))
    names = [
        n for row in table("docs/targets.md", "rule") for n in re.findall(r"`([\w-]+)`", row[0])
    ]
    assert len(names) > 20
    for name in names:
        assert re.search(rf"[\"' ]{name}[\"')]", code), f"no rule is called {name}"


def test_the_environments_of_contributing_exist() -> None:
    named = re.findall(
        r"tox run -e ([\w,-]+)", "".join(map(text, ("CONTRIBUTING.md", "tests/README.md")))
    )
    sections = set(re.findall(r"^\[testenv:([^]]+)\]", text("tox.ini"), re.MULTILINE))
    for name in {each for names in named for each in names.split(",")}:
        generated = (ROOT / "matrix" / "targets" / f"{name.rpartition('-')[0]}.toml").is_file()
        python = re.fullmatch(r"py3(11|12|13)", name) and "py3{11,12,13}" in sections
        assert name in sections or generated or python, f"there is no environment {name}"


def test_the_metrics_of_expectations_are_the_code_s() -> None:
    from portagpu.facts.targets.expect import METRICS

    listed: dict[str, set[str]] = {}
    for names, algorithms, _ in table("docs/targets.md", "metric"):
        first, *others = re.findall(r"`([\w/<>]+)`", names)
        area = first.partition("/")[0]
        for name in (first, *others):
            full = name if "/" in name else f"{area}/{name}"
            listed[full] = set(re.findall(r"`(\w+)`", algorithms))
    gemm = listed.pop("gemm/<dtype>")
    known = {name: set(metric.algorithms) - {"unstated"} for name, metric in METRICS.items()}
    assert listed == {name: kinds for name, kinds in known.items() if not name.startswith("gemm/")}
    assert {frozenset(known[name]) for name in known if name.startswith("gemm/")} == {
        frozenset(gemm)
    }


def test_the_limits_of_launches_are_the_facts() -> None:
    from portagpu.facts.targets import load_architecture

    rows = {row[0]: row[1:] for row in table("docs/kernels.md", "limit")}
    families = sorted((ROOT / "matrix" / "targets" / "families").glob("*.toml"))
    for vendor, column in (("sm_", 0), ("gfx", 1)):
        archs = [load_architecture(p.stem) for p in families if p.stem.startswith(vendor)]
        most = {arch.fact("exec.max_threads_per_block").value for arch in archs}
        assert most == {1024}
        assert rows["threads per block"][column].startswith("1,024")
        shared = {
            arch.arch.name: arch.fact("shared_memory.per_block_optin").value for arch in archs
        }
        stated = rows["shared memory per block"][column]
        for value in (min(shared.values()), max(shared.values())):
            assert f"{value // 1024}" in stated, f"{stated!r} lacks {value // 1024} KiB"
        y = {arch.fact("exec.max_grid_y").value for arch in archs}
        assert rows["blocks along x; y and z"][column] == f"2³¹-1; {y.pop():,}"
        assert not y


def test_what_bundles_removed_is_explained() -> None:
    kinds = names_of(table("docs/results.md", "kind"))
    for path in (ROOT / "matrix" / "results").glob("*.json"):
        removed = set(json.loads(path.read_text("utf-8"))["scrubbed"])
        assert removed <= kinds, f"docs/results.md does not explain {removed - kinds}"
