"""Everything here that is generated: ``python -m tests.support.pages`` writes all of it.

``PAGES`` are whole files. ``TABLES`` stand in Markdown pages, each between two markers. A test
compares each file with what this module makes.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.files import write_atomic
from portagpu.base.installation import SCHEMA, WRITE_PAGES
from portagpu.checks.bringup import load_gates
from portagpu.checks.collectives_doctor import known_findings
from portagpu.checks.monitor.metrics import METRICS, OWN_METRICS
from portagpu.checks.monitor.sample import described
from portagpu.devices.precision import FORMATS
from portagpu.facts.targets import load_targets
from portagpu.reports import bundles as bundle
from portagpu.reports import proofs as matrix
from portagpu.reports.proofs.table import read_committed
from portagpu.runs.results import advice
from portagpu.runs.results.advice import Action, Cause
from portagpu.runs.results.schema import json_schema
from portagpu.suites.compile.record import read_record
from portagpu.suites.compile.record import table as compiled_table
from portagpu.suites.conformance import list_cases
from portagpu.suites.conformance.cases import AREAS, base_id, retired_cases
from portagpu.train.kernels.cpp.sources import KERNELS
from tests.benchmarks import cost_models
from tests.support.cli_page import cli_page
from tests.support.health_page import expectations_table
from tests.support.layers_picture import layers_picture
from tests.support.monitor_dashboard import dashboard_page
from tests.support.not_shown_page import not_shown_section
from tests.support.public_surface import public_surface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from portagpu.devices.precision.formats import Format
    from portagpu.reports.proofs import Row
    from portagpu.suites.conformance.messages import ListedCase

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = re.compile(r"(<!-- table ([\w-]+): [^\n]* -->\n)[^<]*(?=<!-- end of table -->)")
_CASES: Final = f"""\
# The cases

Written by `{WRITE_PAGES}`.
[Conformance](../conformance.md) says what a verdict means and how a case is added. Forms that are
deep run with `--level deep`, in a full bring-up, and where `--only` has their whole name.

"""
_TRAPS: Final = """
## Traps

What is known to go wrong between vendors, where it can be seen, and the cases that look for it.
Those seen in a program's text alone ("source") are not for a suite that runs. Where the answer is
the same on every machine, a test of this package looks for the trap.

"""
_FAULTS: Final = f"""\
# What the suite catches

Written by `{WRITE_PAGES}`. Each fault is seeded into a good backend or next to it, and the named
case fails with a sentence that fits; without the fault it passes.

"""
_ADVICE: Final = f"""\
# When it fails

Written by `{WRITE_PAGES}`.

With this page you look up a failure: every id that a result can have, how grave its failure is,
what it means and what to do. A run's headline is its gravest failure, and its failures stand at its
end in this order:

"""

_ACTIONS: Final = """\
Each failure asks for an action, which programs read (`extra.action`). An error of a log
or a tool's answer has the action that its vendor's document states (`extra.action` of the result,
and `extra.action_source`); other checks have the one that stands here. A second word in brackets is
the action of an UNVERIFIED result. PASS, SKIP and INCONCLUSIVE ask for nothing.

"""
_ADVICE_COLUMNS: Final = ("check", "severity", "action", "means", "do")


@dataclass(frozen=True, slots=True)
class Trap:
    """A known difference between vendors; ``on`` is where a case can observe it."""

    id: str
    about: str
    on: tuple[str, ...]


@cache
def traps() -> tuple[Trap, ...]:
    """The known traps."""
    rows = tomllib.loads((ROOT / "matrix/conformance/traps.toml").read_text("utf-8"))
    return tuple(Trap(name, row["about"], tuple(row["on"])) for name, row in rows.items())


def cases_page(cases: Sequence[ListedCase], known: Iterable[Trap]) -> str:
    """docs/book/cases.md: every case with its sentence, and the cases for every trap."""
    areas: dict[str, dict[str, list[ListedCase]]] = {area: {} for area in AREAS}
    for each in cases:
        areas[each.area].setdefault(base_id(each.id), []).append(each)
    areas = {area: functions for area, functions in areas.items() if functions}
    sizes = {area: (len(each), sum(map(len, each.values()))) for area, each in areas.items()}
    total = tuple(sum(column) for column in zip(*sizes.values(), strict=True))
    parts = [
        _CASES,
        _table(
            ("area", "cases", "with their parameters"),
            ((area, *map(str, size)) for area, size in {"all": total, **sizes}.items()),
        ),
    ]
    for area, functions in areas.items():
        head = ("case", "forms", "says", "needs", "outcome", "earns", "traps")
        parts += [f"\n## {area}\n\n", _table(head, map(_case_cells, functions.values()))]
    parts.append(_TRAPS)
    caught: dict[str, dict[str, None]] = {}
    for each in cases:
        for trap in each.traps:
            caught.setdefault(trap, {})[f"`{base_id(each.id)}`"] = None
    tests = retired_cases().values()
    rows = (
        (
            trap.id,
            _escaped(trap.about),
            ", ".join(trap.on),
            ", ".join(caught.get(trap.id, ())),
            ", ".join(f"`{each.test}`" for each in tests if trap.id in each.traps),
        )
        for trap in known
    )
    return "".join([*parts, _table(("trap", "about", "seen on", "cases", "tests"), rows)])


def _case_cells(forms: Sequence[ListedCase]) -> tuple[str, ...]:
    first = forms[0]
    deep = sum(not each.default for each in forms)
    return (
        f"`{base_id(first.id).partition('/')[2]}`",
        f"{len(forms)}, {deep} of them deep" if deep else str(len(forms)),
        _escaped(first.spec),
        ", ".join(first.capability),
        _escaped(first.outcome),
        str(first.evidence or "nothing"),
        ", ".join(first.traps),
    )


def faults() -> dict[str, dict[str, str]]:
    """The case for every fault that tests seed, by what is broken. Needs torch."""
    from tests.support import broken_collectives, suite_patches
    from tests.torch import test_suite_faults

    return {
        "A backend that": {name: row[2] for name, row in test_suite_faults.FAULTS.items()},
        "Software next to the device that": {
            name: patch.case for name, patch in suite_patches.PATCHES.items()
        },
        "A communication library that": {
            name: row[0] for name, row in broken_collectives.FAULTS.items()
        },
    }


def faults_page() -> str:
    """docs/book/faults.md: the faults that tests seed, and the case that catches each."""
    found = faults()
    parts = [f"{_FAULTS}{sum(map(len, found.values()))} faults.\n"]
    for heading, rows in found.items():
        cells = ((name, f"`{case}`") for name, case in rows.items())
        parts.append(f"\n## {heading}\n\n{_table(('fault', 'case'), cells)}")
    return "".join(parts)


def advice_page() -> str:
    """docs/when-it-fails.md: what every failed check means, how severe it is and what to do."""
    same = "".join(
        f"The gate `{gate}` has the checks of `{other}`. "
        for gate, other in advice.same_gates().items()
    )
    time = advice.time_check()
    wrong, software = (advice.wrong_check(each) for each in (Cause.OPEN, Cause.SOFTWARE))
    parts = [
        _ADVICE,
        *(f"{each.rank + 1}. {each.title}\n" for each in advice.severities().values()),
        f"\n{same}`*` stands for anything. An error of a log is as grave as\n",
        "its vendor says of its code. A check that broke (ERROR) is the last, unless\n",
        "the device cannot be opened.\n",
        f"\n**Time alone.** {time.means} So a failure whose value is `{advice.HUNG}` is\n",
        f'"{time.severity.title}", with the action `{time.action}`, whatever its check:\n',
        f"{time.do}.\n",
        f"\n**Wrong values.** {wrong.means} So a failure with `extra.{advice.WRONG_VALUE}` is\n",
        f'"{wrong.severity.title}", with the action `{wrong.action}`, whatever its check:\n',
        f"{wrong.do}.\n",
        f"{software.means} Then its `cause` is `{Cause.SOFTWARE}`, with the action\n",
        f"`{software.action}`: {software.do}.\n",
        f"\n{_ACTIONS}",
        _table(("action", "what an operator does"), [(f"`{each}`", each.means) for each in Action]),
    ]
    suites: dict[str, list[tuple[str, ...]]] = {}
    for check in advice.checks():
        ids = ", ".join(f"`{each}`" for each in check.ids)
        unusual = f" (`{check.unverified}`)" if check.unverified != Action.NONE else ""
        row = (ids, check.severity.title, f"`{check.action}`{unusual}", check.means, check.do)
        suites.setdefault(check.suite, []).append(row)
    for suite, rows in suites.items():
        parts.append(f"\n## {suite}\n\n{_table(_ADVICE_COLUMNS, rows)}")
    return "".join(parts)


def contents() -> str:
    """matrix/contents.toml: the gates and the number of cases that a whole installation has."""
    gates = "".join(f'  "{gate.id}",\n' for gate in load_gates())
    counted = Counter(case.area for case in list_cases())
    cases = "".join(f"{area} = {count}\n" for area, count in counted.items())
    head = "# What a whole installation holds: the gates of a bring-up, and the cases of each area."
    again = f"# Written by {WRITE_PAGES}"
    return f'{head}\n{again}\nschema = "{SCHEMA}"\ngates = [\n{gates}]\n\n[conformance]\n{cases}'


def cpp_kernels_table() -> str:
    """Registers and static shared memory of each C++ kernel; like architectures share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for arch, built in _compiled()["architectures"].items():
        cells, compilers = [], set()
        for kernel in KERNELS:
            found = [row for name, row in built.items() if name.partition("[")[0] == kernel]
            compilers |= {row["compiler"] for row in found}
            registers = [row["code"]["registers"] for row in found]
            shared = max(row["code"]["shared_bytes"] for row in found)
            stated = " to ".join(map(str, dict.fromkeys((min(registers), max(registers)))))
            cells.append(f"{stated}, {shared} B" if shared else stated)
        rows.setdefault((", ".join(sorted(compilers)), *cells), []).append(f"`{arch}`")
    head = ("architecture", "compiler", *(f"`{name}`" for name in KERNELS))
    return _table(head, ((", ".join(archs), *cells) for cells, archs in rows.items()))


def searches_table() -> str:
    """The cases that run random programs."""
    searches = [each for each in list_cases() if each.search]
    head = ("area", "case", "says", "seconds")
    rows = (
        (each.search, f"`{each.id}`", _escaped(each.spec), f"{each.search_s:g}")
        for each in searches
    )
    total = sum(each.search_s for each in searches)
    return _table(head, [*rows, ("all", "", "", f"{total:g}")])


@cache
def _matrix() -> Sequence[Row]:
    return matrix.rows(load_targets().values(), (), read_committed(ROOT / "matrix"))


def recorded_table() -> str:
    """Of which targets published outputs were read, and which library agreed."""
    found = read_committed(ROOT / "matrix").recorded
    cells = (
        (f"`{target}`", ", ".join(each.read), each.loaded or "") for target, each in found.items()
    )
    return _table(("target", "read from", "`loaded`"), cells)


def fp8_table() -> str:
    """The range and the special codes of each fp8 format."""
    kinds = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
    formats = [FORMATS[f"float8_{kind}"] for kind in kinds]
    rows: dict[str, Callable[[Format], str]] = {
        "largest": lambda each: f"{each.max:g}",
        "smallest normal, smallest": lambda each: (
            f"2^{math.log2(each.min_normal):g}, 2^{math.log2(each.min_subnormal):g}"
        ),
        "infinity": lambda each: _codes([[code] for code in each.infinity_codes]),
        "NaN": lambda each: _codes(each.nan_codes),
        "minus zero": lambda each: "0x80" if each.decode(0x80) == 0 else "none",
    }
    return _table(("fp8", *kinds), ((name, *map(row, formats)) for name, row in rows.items()))


def _codes(ranges: Iterable[Sequence[int]]) -> str:
    ends = (dict.fromkeys((codes[0], codes[-1])) for codes in ranges)
    return ", ".join("-".join(f"{code:#04x}" for code in each) for each in ends) or "none"


def findings_table() -> str:
    """What the doctor of collectives can find."""
    rows = (
        (f"`{each.id}`", str(each.verdict), each.means, each.cause, each.remedy)
        for each in known_findings().values()
    )
    return _table(("finding", "verdict", "means", "usual cause", "remedy"), rows)


def cost_model_errors_table() -> str:
    """Predicted over measured times of published results, in the median."""
    sizes = ("to 4 KiB", "to 64 KiB", "to 1 MiB", "to 16 MiB", "to 256 MiB", "more")
    return _table(("hardware", "operation", "nodes", *sizes), cost_models.rows())


@cache
def _compiled() -> Mapping[str, Any]:
    return read_record(ROOT / "matrix/compiled.json")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (head, *rows))
    return "".join([first, f"|{'---|' * len(head)}\n", *others])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def monitor_metrics_table() -> str:
    """docs/monitor.md: the metrics of devices."""
    rows = [
        (
            f"`{each.series}`",
            f"`{each.convention}`" if each.convention else "",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            each.about,
        )
        for each in METRICS
    ]
    return _table(("metric", "OpenTelemetry", "type", "own labels", "says"), rows)


def limits_table() -> str:
    """docs/design.md: how long the product waits."""
    (limits,) = [
        node
        for node in ast.parse((ROOT / "portagpu/base/patience.py").read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "Limits"
    ]
    rows = [
        (f"`{ast.unparse(name.target)}`", f"{ast.literal_eval(name.value):g}", said.value.value)
        for name, said in pairwise(limits.body)
        if isinstance(name, ast.AnnAssign)
    ]
    return _table(("limit", "seconds", "for"), rows)


def monitor_own_metrics_table() -> str:
    """docs/monitor.md: the metrics of the monitor itself."""
    rows = [(f"`{name}`", kind, about) for name, (kind, about) in OWN_METRICS.items()]
    return _table(("metric", "type", "says"), rows)


def monitor_sample_table() -> str:
    """docs/monitor.md: the keys of a sample."""
    return _table(("key", "says"), ((f"`{key}`", about) for key, about in described().items()))


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/book/cases.md": lambda: cases_page(list_cases(), traps()),
    "docs/book/cli.md": cli_page,
    "docs/book/faults.md": faults_page,
    "docs/images/layers.svg": layers_picture,
    "docs/when-it-fails.md": advice_page,
    "docs/result.schema.json": lambda: f"{json.dumps(json_schema(), indent=2)}\n",
    "portagpu/checks/monitor/grafana.json": dashboard_page,
    "matrix/contents.toml": contents,
    "tests/unit/public_surface.txt": public_surface,
    **{
        str(path.relative_to(ROOT)): partial(cost_models.known_errors, vendor)
        for vendor, path in cost_models.TABLES.items()
    },
}
TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "collective-findings": findings_table,
    "cost-model-errors": cost_model_errors_table,
    "bundles": lambda: f"{bundle.table(ROOT / 'matrix/results')}\n",
    "compiled": lambda: f"{compiled_table(_compiled())}\n",
    "cpp-kernels": cpp_kernels_table,
    "expectations": expectations_table,
    "fp8": fp8_table,
    "limits": limits_table,
    "matrix": lambda: f"{matrix.markdown(_matrix())}\n",
    "matrix-summary": lambda: f"{matrix.summary(_matrix())}\n",
    "monitor-metrics": monitor_metrics_table,
    "monitor-own-metrics": monitor_own_metrics_table,
    "monitor-sample": monitor_sample_table,
    "not-shown": lambda: not_shown_section(_matrix()),
    "recorded": recorded_table,
    "searches": searches_table,
}


def files() -> list[str]:
    """Every file that is generated, or that has a generated table."""
    pages = sorted([*ROOT.glob("README.md"), *(ROOT / "docs").glob("*.md")])
    found = [page for page in pages if "<!-- table " in page.read_text("utf-8")]
    return [*PAGES, *(str(page.relative_to(ROOT)) for page in found)]


def generate(name: str) -> str:
    """What the file ``name`` has to hold."""
    if name in PAGES:
        return PAGES[name]()
    text = (ROOT / name).read_text("utf-8")
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]](), text)


def main() -> None:
    """Make all of it, then write each file that is not current, and name it."""
    try:
        texts = {ROOT / name: generate(name) for name in files()}
    except (PortagpuError, ModuleNotFoundError) as error:
        sys.exit(f"nothing was written: {error}")
    for path, text in texts.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            print(f"wrote {write_atomic(path, text).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
