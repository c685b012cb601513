"""The plugin of a user's own pytest: ``--portagpu-backend NAME`` adds the conformance suite.

``-p portagpu.suites.conformance.user_plugin`` loads it, and nothing else does: an installation for
training adds no plugin to the tests of its environment. Every case becomes an item next to the
project's tests, so ``-k``, ``-x`` and ``--junitxml`` work as usual. The cases still run in a child
process with its own configuration. PASS is a passed test, FAIL and ERROR a failed one. Every other
verdict is a skip with its reason; ``--portagpu-strict`` turns INCONCLUSIVE and UNVERIFIED into
failures. A last item is about the run as a whole; no option deselects it while there is a case. It
passes if some case was judged and no result is in the area ``suite``.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.runs.results.run import Result
    from portagpu.suites.conformance.messages import ListedCase

_NODE: Final = "portagpu"
_BACKEND: Final = "--portagpu-backend"
_STRICT: Final = "--portagpu-strict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; without the first one this plugin does nothing."""
    group = parser.getgroup("portagpu")
    group.addoption(
        _BACKEND, metavar="NAME", help="also run PortaGPU's conformance suite on this backend"
    )
    group.addoption(
        _STRICT, action="store_true", help="a conformance case that could not be judged fails"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Refuse pytest-xdist: its processes would share the device."""
    shared = config.getoption("dist", "no") != "no" or hasattr(config, "workerinput")
    if config.getoption(_BACKEND) is not None and shared:
        raise pytest.UsageError(f"{_BACKEND} needs one process: run pytest without -n")
    config.pluginmanager.register(_LastItemPlugin())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the cases, before anything is deselected."""
    backend = config.getoption(_BACKEND)
    if backend is None:
        return
    from portagpu.base.errors import PortagpuError
    from portagpu.devices.registry import resolve
    from portagpu.suites.conformance import Selection, list_cases

    try:
        name = resolve(backend)
        cases = list_cases(Selection())
    except PortagpuError as error:
        raise pytest.UsageError(str(error)) from None
    run = _SuiteThread(name, len(cases))
    parent = _Suite.from_parent(session, name=_NODE, nodeid=_NODE)
    found = [_CaseItem.from_parent(parent, case=each, run=run) for each in cases]
    items.extend(found)
    # the terminal reporter counts collected items from these reports
    report = pytest.CollectReport(_NODE, "passed", None, list(found))
    config.hook.pytest_collectreport(report=report)


class _LastItemPlugin:
    """Adds the last item after all selection and ordering.

    Registered last, it wraps all other plugins, also that of ``--last-failed``.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Iterator[None]:
        yield
        case = next((each for each in items if isinstance(each, _CaseItem)), None)
        if case is not None:
            items.append(_WholeItem.from_parent(session, run=case.run))


class CaseFailure(Exception):
    """A case that failed; shown as its sentence, without a traceback."""


class _Suite(pytest.Collector):
    def collect(self) -> Sequence[pytest.Item]:
        return []


class _SuiteItem(pytest.Item):
    def __init__(self, *, name: str, run: _SuiteThread, **given: Any) -> None:
        super().__init__(name=name, nodeid=f"{_NODE}::{name}", **given)
        self.run = run

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CaseFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        return _NODE, None, self.name


class _WholeItem(_SuiteItem):
    def __init__(self, **given: Any) -> None:
        super().__init__(name="suite", **given)

    def runtest(self) -> None:
        from portagpu.runs.results.run import Verdict
        from portagpu.suites.conformance.judge import OWN_AREA

        results = self.run.all_results()
        found = [f"{each.id}: {each.reason}" for each in results if each.area == OWN_AREA]
        if found:
            raise CaseFailure("\n".join(found))
        if not any(each.failed or each.verdict is Verdict.PASS for each in results):
            raise CaseFailure("no case was judged")


class _CaseItem(_SuiteItem):
    def __init__(self, *, case: ListedCase, **given: Any) -> None:
        super().__init__(name=case.id, **given)
        self.case = case

    def runtest(self) -> None:
        from portagpu.runs.results.run import Verdict

        chosen = [item.name for item in self.session.items if isinstance(item, _CaseItem)]
        result = self.run.result(self.name, chosen)
        if result.verdict in (Verdict.FAIL, Verdict.ERROR):
            raise CaseFailure(f"{result.reason}\n{self.case.spec}")
        unjudged = result.verdict in (Verdict.INCONCLUSIVE, Verdict.UNVERIFIED)
        if unjudged and self.config.getoption(_STRICT):
            raise CaseFailure(f"not judged: {result.reason}\n{self.case.spec}")
        if result.verdict is not Verdict.PASS:
            pytest.skip(f"{result.verdict}: {result.reason}")


class _SuiteThread:
    """Runs the suite in a thread; the items take its results in their own order."""

    def __init__(self, backend: str, whole: int) -> None:
        self._backend = backend
        self._whole = whole
        self._arriving: queue.Queue[Result | BaseException | None] = queue.Queue()
        self._results: dict[str, Result] = {}
        self._thread: threading.Thread | None = None

    def result(self, name: str, chosen: Sequence[str]) -> Result:
        """The result of that case; the first call starts the run of all that are chosen."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._conform, args=(chosen,), daemon=True)
            self._thread.start()
        while name not in self._results and self._take():
            pass
        if name not in self._results:
            raise CaseFailure("the suite ended without a result of this case")
        return self._results[name]

    def all_results(self) -> list[Result]:
        """Every result, when the run has ended."""
        while self._thread is not None and self._take():
            pass
        return list(self._results.values())

    def _take(self) -> bool:
        """Wait for one more result; False at the end. Raises CaseFailure if the suite broke."""
        from portagpu.runs.results.run import Result

        arrived = self._arriving.get()
        if isinstance(arrived, Result):
            self._results[arrived.id] = arrived
            return True
        # put back, so that the next call gets the same answer
        self._arriving.put(arrived)
        if arrived is not None:
            raise CaseFailure(f"the suite cannot run: {arrived}")
        return False

    def _conform(self, chosen: Sequence[str]) -> None:
        from portagpu.runs.engine import Progress
        from portagpu.suites.conformance import ConformOptions, Selection, conform

        only = tuple(chosen) if len(chosen) < self._whole else ()
        arriving = self._arriving

        class QueueProgress(Progress):
            def result_added(self, result: Result) -> None:
                arriving.put(result)

        error: BaseException | None = None
        try:
            conform(
                ConformOptions(backend=self._backend, selection=Selection(only=only)),
                QueueProgress(),
            )
        except Exception as raised:  # noqa: BLE001 - said by the case that waits for it
            error = raised
        self._arriving.put(error)
