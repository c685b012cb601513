"""The gate numerics: do the devices pass the conformance suite?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency
from portagpu.runs.engine import OpenedDevice, Progress
from portagpu.runs.results.run import Verdict, fold
from portagpu.runs.results.wording import exactly
from portagpu.suites.conformance import ConformOptions, Selection
from portagpu.suites.conformance.engine import judge_cases
from portagpu.suites.conformance.judge import OWN_AREA, UNOPENED_DEVICE
from portagpu.suites.conformance.messages import check_dependencies

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result

_LISTED: Final = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.UNVERIFIED})


@dataclass(slots=True)
class _SuiteResults(Progress):
    """Collects the suite's results of the first device, and of each further one by its name."""

    context: Context
    devices: int = 0
    first: list[Result] = field(default_factory=list)
    further: dict[str, list[Result]] = field(default_factory=dict)

    def opened(self, device: OpenedDevice) -> None:
        self.devices += 1
        if self.devices > 1:
            self.further[device.name] = []

    def result_added(self, result: Result) -> None:
        name = result.device or ""
        if self.devices > 1 or result.id == f"{OWN_AREA}/{UNOPENED_DEVICE}":
            self.further.setdefault(name, []).append(result)
        else:
            self.first.append(result)
        self.context.step(f"{name}: {result.id}" if name else result.id)

    def stop_reason(self) -> str:
        return self.context.time_is_up()

    def results(self) -> Iterator[Result]:
        """Every result of the first device; the failures and a summary of each further one."""
        yield from map(self.context.adopt, self.first)
        spent = self.context.time_is_up()
        for name, found in self.further.items():
            for result in found:
                if result.verdict in _LISTED and (result.reason != spent or not spent):
                    yield self.context.adopt(result)
            yield self._sum(name, found, spent)

    def _sum(self, name: str, found: Sequence[Result], spent: str) -> Result:
        """One result that sums up a further device: 64 devices with 700 each are too many."""
        counts = Counter(each.verdict for each in found)
        listed = ", ".join(f"{counts[each]} {each}" for each in Verdict if counts[each])
        why = f"; {spent}" if any(each.reason == spent for each in found if spent) else ""
        return self.context.result(
            "device",
            fold(counts),
            f"cases about one device: {listed or 'none'}{why}",
            device=name,
            value=counts[Verdict.FAIL] + counts[Verdict.ERROR],
            unit="1",
            expected=exactly(0, "cases that fail"),
            duration_s=sum(each.duration_s for each in found),
            does_not_show="cases on ranks and those of data, which ran once",
        )


def check(context: Context) -> Iterator[Result]:
    """The suite's smoke cases, or all cases, on every device.

    Cases on ranks and cases about no device run once.
    """
    try:
        check_dependencies()
    except MissingDependency as error:
        yield context.result("suite", Verdict.INCONCLUSIVE, str(error))
        return
    judged = _SuiteResults(context)
    devices = [] if context.tested.shared else [device.index for device in context.tested.devices]
    smoke = context.amounts["smoke"]
    selection = Selection(smoke=smoke, deep=not smoke)
    # a bring-up has the same programs each time, so that two of them can be compared
    options = ConformOptions(
        backend=context.tested.backend, selection=selection, index=devices or 0, seed=0
    )
    try:
        judge_cases(options.new_run(), options, judged, context.tested.ranks)
    except KeyboardInterrupt:
        # results from before the interrupt stay in the run
        yield from judged.results()
        raise
    if not judged.first:
        yield context.result("suite", Verdict.INCONCLUSIVE, "the conformance suite ran no case")
    yield from judged.results()
