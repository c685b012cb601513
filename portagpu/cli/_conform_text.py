"""The text of ``portagpu conform``: the list of cases, results as they come, the summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from portagpu.base.text import printable
from portagpu.cli._common import results_line
from portagpu.cli._run_output import View
from portagpu.cli._tables import first_few
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import failures_text
from portagpu.suites.conformance.cases import base_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.cli._run_output import Files
    from portagpu.devices.contract import Override
    from portagpu.runs.engine import OpenedDevice
    from portagpu.runs.results.run import Result, Run
    from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase


class SuiteView(View):
    """Keeps the opened devices; with ``verbose``, prints every result as it comes."""

    def __init__(self, files: Files, *, verbose: bool = False) -> None:
        super().__init__(files)
        self.devices: list[DeviceUnderTest] = []
        self._verbose = verbose

    def opened(self, device: OpenedDevice) -> None:
        self.devices.append(device)  # type: ignore[arg-type]

    def result_added(self, result: Result) -> None:
        super().result_added(result)
        if self._verbose:
            where = f" on {result.device}" if result.device else ""
            seen = result.reason or "; ".join(map(str, result.extra.get("observed", ())))
            why = f": {' '.join(seen.split())}" if seen else ""
            line = f"{result.verdict:<13}{result.duration_s:6.1f} s  {result.id}{where}{why}"
            print(line, file=self.stream, flush=True)


def listing(cases: Sequence[ListedCase], overrides: Sequence[Override]) -> str:
    """The cases by area and function, with their specifications."""
    by_function: dict[str, list[ListedCase]] = {}
    for each in cases:
        by_function.setdefault(base_id(each.id), []).append(each)
    lines: list[str] = []
    area = ""
    for name, members in by_function.items():
        if members[0].area != area:
            area = members[0].area
            lines.append(f"{area}:" if not lines else f"\n{area}:")
        times = f" ({len(members)} cases)" if len(members) > 1 else ""
        lines.append(f"  {name}{times}\n      {members[0].spec}")
        found = dict.fromkeys(each.first_override(overrides) for each in members)
        lines += [f"      {one.outcome} ({one.pattern}): {one.reason}" for one in found if one]
    return "\n".join([*lines, "", f"{len(cases)} cases in {len(by_function)} functions"])


def _judged_devices(devices: Sequence[DeviceUnderTest]) -> str:
    """Which devices were judged, and how many there are."""
    if not devices:
        return ""
    first, judged = devices[0], len(devices)
    text = f"on {first.backend}, {first.title}"
    if first.count == 1:
        return text
    if judged == first.count:
        return f"{text}, all {judged} devices"
    named = " and ".join(each.name for each in devices)
    return f"{text}, {named} of {first.count} devices: --index all judges all"


def summary(run: Run, devices: Sequence[DeviceUnderTest]) -> str:
    """The summary: results that were not judged, a table of areas, failures, the verdict."""
    parts = []
    for title, verdict in (
        ("Not judged", Verdict.INCONCLUSIVE),
        ("Unverified", Verdict.UNVERIFIED),
        ("Skipped", Verdict.SKIP),
    ):
        lines = _reason_lines([each for each in run.results if each.verdict is verdict])
        if lines:
            parts.append("\n".join([f"{title}:", *lines]))
    if run.results:
        parts.append("\n".join(_area_table(run)))
    if failures := failures_text(run.results):
        parts.append("\n".join(failures).rstrip())
    if run.info.seed is not None:
        parts.append(f"Random programs have the seed {run.info.seed}: --seed repeats them")
    where = printable(_judged_devices(devices))
    counts = f"{results_line(run)} {where}".rstrip()
    parts.append(f"{counts}\n{run.summary_line()}")
    return "\n\n".join(parts)


def _reason_lines(results: Sequence[Result]) -> list[str]:
    """Two lines for each reason: the cases that share it, and the reason."""
    by_reason: dict[str, list[Result]] = {}
    for each in results:
        by_reason.setdefault(f"{each.verdict} {each.reason}", []).append(each)
    lines = []
    for group in by_reason.values():
        names = (f"{each.id} on {each.device}" if each.device else each.id for each in group)
        lines.append(f"  {group[0].verdict:<13}{first_few(names, 3)}")
        lines.append(f"  {'':<13}{group[0].reason}")
    return lines


def _area_table(run: Run) -> list[str]:
    by_area: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    for each in run.results:
        by_area.setdefault(each.area, Counter())[each.verdict] += 1
        seconds[each.area] = seconds.get(each.area, 0.0) + each.duration_s
    kinds = [kind for kind, count in run.counts.items() if count]
    head = f"{'area':<14}" + "".join(f"{kind:>14}" for kind in kinds) + f"{'seconds':>10}"
    rows = [
        f"{area:<14}"
        + "".join(f"{counted[kind]:>14}" for kind in kinds)
        + f"{seconds[area]:>10.1f}"
        for area, counted in by_area.items()
    ]
    return [head, *rows]
