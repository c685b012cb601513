"""Measures which way to perform a collective is the fastest, checks it, and makes a profile of it.

Two kinds of candidates: compositions of the library's calls
(:mod:`portagpu.devices.collectives.algorithms`), and settings of a vendor's table, for each of
which fresh ranks are started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final

from portagpu.base.documents import decode, encode
from portagpu.base.stats import summarise
from portagpu.devices.collectives.cost import Fit, fit_line
from portagpu.devices.collectives.tuning import (
    DEFAULT,
    WORTH,
    Candidate,
    Entry,
    Machine,
    Point,
    Profile,
    Stack,
    in_ranges,
    repeats,
    settings,
)
from portagpu.devices.registry import plugin
from portagpu.facts.nccl_tests.model import SHARED_OUT, TUNED
from portagpu.facts.nccl_tests.tables import item_bytes
from portagpu.runs.engine import Progress, check_device, complete
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import Ranks
from portagpu.suites.collectives.verify import (
    SUITE,
    SweepOptions,
    WrongOptions,
    broken_result,
    culprit,
    shared_memory_only,
    sweep,
    whole_result,
)
from portagpu.suites.performance import Effort, MeasuredDevice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.runs.results.run import Run
    from portagpu.runs.world import WorldOutcome

ID: Final = "collectives/tune"
SWEEP: Final = "portagpu.suites.collectives.tune_ranks:sweep"
DTYPES: Final = ("float32",)
WORLDS: Final = (2, 4)
TIMEOUTS_S: Final = {Effort.QUICK: 120.0, Effort.FULL: 600.0}
_SIZES: Final = {
    Effort.QUICK: tuple(4**power for power in (5, 8, 10, 11, 12)),
    Effort.FULL: tuple(4**power for power in range(5, 14)),
}
"""Bytes in total, S: five from 1 KiB to 16 MiB, and nine from 1 KiB to 64 MiB."""
_ROUNDS: Final = {Effort.QUICK: 7, Effort.FULL: 15}
_PAIRS: Final = {Effort.QUICK: 12, Effort.FULL: 30}
_POINT_S: Final = {Effort.QUICK: 0.5, Effort.FULL: 5.0}
_TURNS: Final = (True, False, False, True, True, False, False, True)
"""Worlds of the default (True) and of settings when they are measured again: settings have to be
faster in every pair of worlds, of which two have one order and two the other."""
_KEYS: Final = ("product", "units", "shared", "comm", "comm_version")
"""What a profile needs to know of the device."""
_SOURCE: Final = "every element of every rank, for every candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(SweepOptions):
    """The options of :func:`tune`. ``nodes`` is 1: all ranks are on this machine."""

    known_operations: ClassVar[Sequence[str]] = TUNED

    dtypes: Sequence[str] = DTYPES
    function: str = SWEEP

    def __post_init__(self) -> None:
        # a dataclass with slots is a new class, which super() without arguments does not know
        super(TuneOptions, self).__post_init__()
        if min((*self.worlds, 2)) < 2:
            raise WrongOptions("there is nothing to tune on 1 rank: give --ranks 2 or more")
        if min((*self.sizes, 1)) < 1:
            raise WrongOptions("there is nothing to tune at 0 bytes")

    def points(self, operation: str, world: int) -> list[tuple[str, int]]:
        """The (dtype, bytes) to measure, in order, each once."""
        share = world if operation in SHARED_OUT else 1
        found = []
        for dtype in self.dtypes or DTYPES:
            unit = (item_bytes(dtype) or 1) * share
            sizes = sorted(size // unit * unit for size in self.sizes or _SIZES[self.effort])
            found += [(dtype, size) for size in dict.fromkeys(sizes) if size]
        return found


def tune(options: TuneOptions, progress: Progress | None = None) -> Run:
    """Measure the candidates of each operation on worlds of ranks, and return the finished run.

    A result for each operation, dtype, size and world has the number of wrong elements of all
    candidates on all ranks, which must be 0, and in ``extra`` what was chosen; :func:`profile_of`
    makes a profile of them. On Ctrl-C the run is marked as interrupted. Raises UnknownBackend,
    BackendNotFound, and MissingDependency without torch.
    """
    progress = progress or Progress()
    check_device(options.backend, 0)

    def work(run: Run) -> None:
        with Ranks() as ranks:

            def results(device: MeasuredDevice, operation: str, world: int) -> Iterator[Result]:
                return _operation(ranks, options, device, operation, world)

            sweep(run, options, ranks, progress, ID, results, WORLDS, _KEYS)

    return complete(options.new_run(), progress, work)


def _operation(
    ranks: Ranks, options: TuneOptions, device: MeasuredDevice, operation: str, world: int
) -> Iterator[Result]:
    """The results of one operation over one world; one alone if a rank did not return."""
    trial = _Trial(options, device, operation, world)
    points = options.points(operation, world)
    if not points:
        reason = f"no size holds an element for each of {world} ranks"
        yield whole_result(
            f"{ID}/{operation}[{world}]", operation, world, Verdict.INCONCLUSIVE, reason
        )
        return
    outcome = trial.run(ranks, points)
    if not outcome.ok:
        yield broken_result(outcome, f"{ID}/{operation}[{world}]")
        return
    found = [_Measured.of(list(answers)) for answers in zip(*outcome.values, strict=True)]
    for each in settings(
        plugin(device.backend).vendor, device.comm, device.comm_version, operation
    ):
        with Ranks(environment=each.environment) as others:
            outcome = trial.run(others, points, ways=(DEFAULT,))
        if not outcome.ok:
            yield broken_result(outcome, f"{ID}/{operation}/{each.name}[{world}]")
            return
        for measured, answers in zip(found, zip(*outcome.values, strict=True), strict=True):
            measured.compare(each, list(answers))
    lost = _confirm(trial, ranks, found)
    if lost is not None:
        name, outcome = lost
        yield broken_result(outcome, f"{ID}/{operation}/{name}[{world}]")
        return
    for measured in found:
        yield measured.result(device, operation, world)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Worlds of one operation."""

    options: TuneOptions
    device: MeasuredDevice
    operation: str
    world: int

    def run(
        self, ranks: Ranks, points: Sequence[tuple[str, int]], ways: Sequence[str] = ()
    ) -> WorldOutcome:
        """Run all ``ways``, or these alone, at ``points``."""
        effort = self.options.effort
        return ranks.run(
            self.options.function,
            self.world,
            arguments={
                "operation": self.operation,
                "points": points,
                "ways": ways,
                "rounds": _ROUNDS[effort],
                "pairs": _PAIRS[effort],
                "point_s": _POINT_S[effort],
            },
            backend=self.options.backend,
            timeout_s=self.options.timeout_s or TIMEOUTS_S[effort],
        )


@dataclass(slots=True)
class _Measured:
    """One point: the answers of the ranks, and what was chosen so far.

    ``pairs`` are times of (default, chosen) in seconds, empty while the default is chosen.
    ``challenger`` is the fastest of the settings, where it seems to be faster than the chosen one.
    """

    answers: list[dict[str, Any]]
    chosen: Candidate
    pairs: list[tuple[float, float]]
    refuted: str = ""
    challenger: Candidate | None = None
    challenger_s: float = 0.0

    @classmethod
    def of(cls, answers: list[dict[str, Any]]) -> _Measured:
        first = answers[0]
        winner = first["winner"]
        if first["believed"]:
            return cls(answers, Candidate(name=winner, way=winner), first["pairs"])
        refuted = winner if first["pairs"] else ""
        return cls(answers, Candidate(name=DEFAULT), [], refuted)

    @property
    def key(self) -> tuple[str, int]:
        return self.answers[0]["dtype"], self.answers[0]["size_bytes"]

    @property
    def default_s(self) -> list[float]:
        return list(self.answers[0]["seconds"].get(DEFAULT, ()))

    @property
    def chosen_s(self) -> list[float]:
        return [chosen for _, chosen in self.pairs] or self.default_s

    def note_values(self, name: str, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take note of the values that ranks found where ``name`` was measured alone."""
        for own, other in zip(self.answers, answers, strict=True):
            own["checked"] += other["checked"]
            own["wrong"][name] = own["wrong"].get(name, 0) + other["wrong"].get(DEFAULT, 0)
            if DEFAULT in other["refused"]:
                own["refused"][name] = other["refused"][DEFAULT]
            if other["sentence"] and not own["sentence"]:
                own["sentence"] = f"{name}: {other['sentence']}"

    def compare(self, candidate: Candidate, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take note of the settings' values, and of their time if it is the least so far."""
        self.note_values(candidate.name, answers)
        times = answers[0]["seconds"].get(DEFAULT)
        if not times or not self.default_s:
            return
        self.answers[0]["seconds"][candidate.name] = times
        best = self.challenger_s or median(self.chosen_s)
        if median(times) * WORTH < best:
            self.challenger, self.challenger_s = candidate, median(times)

    def repeated(
        self, default_s: Sequence[Sequence[float]], again_s: Sequence[Sequence[float]]
    ) -> None:
        """Judge the challenger by worlds that ran in both orders."""
        assert self.challenger is not None  # noqa: S101 - it was measured again
        # each world made as many rounds as its time allowed
        pairs = [list(zip(*both, strict=False)) for both in zip(default_s, again_s, strict=True)]
        ratios = [[default / again for default, again in of] for of in pairs]
        if not all(ratios) or not repeats(ratios):
            self.refuted = self.challenger.name
            return
        before = median([d / c for d, c in self.pairs]) if self.pairs else 1.0
        if median([each for of in ratios for each in of]) > before:
            self.chosen = self.challenger
            self.pairs = [pair for of in pairs for pair in of]

    def result(self, device: MeasuredDevice, operation: str, world: int) -> Result:
        """The result of this point."""
        dtype, size_bytes = self.key
        first = self.answers[0]
        shape: dict[str, int | str] = {
            "operation": operation,
            "dtype": dtype,
            "bytes": size_bytes,
            "ranks": world,
        }
        id_ = f"{ID}/{operation}/{dtype}/{size_bytes}[{world}]"
        refused = first["refused"]
        sentence = next((each["sentence"] for each in self.answers if each["sentence"]), "")
        if DEFAULT in refused and not sentence:
            return replace(
                whole_result(
                    id_,
                    operation,
                    world,
                    Verdict.SKIP,
                    f"the library refuses {dtype}: {refused[DEFAULT]}",
                ),
                shape=shape,
            )
        wrong = {
            name: sum(each["wrong"].get(name, 0) for each in self.answers)
            for name in first["wrong"]
        }
        return Result(
            id=id_,
            suite=SUITE,
            area=SUITE,
            verdict=Verdict.FAIL if sentence else Verdict.PASS,
            reason=sentence,
            evidence=(Evidence.EXECUTED,),
            device=culprit(self.answers),
            value=sum(wrong.values()),
            unit="1",
            expected=exactly(0, f"{_SOURCE}, {first['checked']} calls"),
            shape=shape,
            does_not_show=shared_memory_only(device, world),
            extra={
                "wrong": wrong,
                "refused": refused,
                "time_us": {name: 1e6 * median(times) for name, times in first["seconds"].items()},
                **({} if sentence else self._choice()),
            },
        )

    def _choice(self) -> dict[str, Any]:
        default_s = [default for default, _ in self.pairs] or self.default_s
        ratios = summarise([d / c for d, c in self.pairs] or [1.0])
        point = Point(
            size_bytes=self.key[1],
            default_us=1e6 * median(default_s),
            chosen_us=1e6 * median(self.chosen_s),
            ratio=ratios.median,
            spread=ratios.spread,
            pairs=len(self.pairs),
            refuted=self.refuted,
        )
        return {
            "chosen": encode(self.chosen),
            "point": encode(point),
            "default_us": [1e6 * each for each in default_s],
            "chosen_us": [1e6 * each for each in self.chosen_s],
        }


def _confirm(
    trial: _Trial, ranks: Ranks, found: Sequence[_Measured]
) -> tuple[str, WorldOutcome] | None:
    """Measure every challenger again, in worlds before and after those of the default.

    Returns the name and the world in which a rank was lost.
    """
    challengers = {each.challenger.name: each.challenger for each in found if each.challenger}
    for name, challenger in challengers.items():
        members = [each for each in found if each.challenger == challenger]
        points = [each.key for each in members]
        turns = []
        with Ranks(environment=challenger.environment) as others:
            for key in _TURNS:
                outcome = trial.run(ranks if key else others, points, ways=(DEFAULT,))
                if not outcome.ok:
                    return name, outcome
                turns.append(list(zip(*outcome.values, strict=True)))
        for each, answers in zip(members, zip(*turns, strict=True), strict=True):
            times: dict[bool, list[list[float]]] = {True: [], False: []}
            for key, again in zip(_TURNS, answers, strict=True):
                each.note_values(DEFAULT if key else name, again)
                times[key].append(again[0]["seconds"].get(DEFAULT, []))
            each.repeated(times[True], times[False])
    return None


def profile_of(run: Run) -> Profile:
    """The profile of a run of :func:`tune`.

    Raises ValueError, with the reason, for a run that was interrupted, has a wrong value or a lost
    rank, or measured nothing.
    """
    if run.info.interrupted:
        raise ValueError("no profile: the run was interrupted")
    failed = next((each for each in run.results if each.failed), None)
    if failed is not None:
        raise ValueError(f"no profile: {failed.id} is {failed.verdict}")
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for result in run.results:
        shape: Any = result.shape
        if "point" in result.extra:
            key = shape["operation"], shape["dtype"], shape["ranks"]
            groups.setdefault(key, []).append(result)
    if not groups:
        raise ValueError("no profile: nothing was measured")
    info = run.info
    (device,) = info.devices
    versions = info.versions
    return Profile(
        machine=Machine(
            backend=info.backend or "",
            target=info.target,
            arch=device["arch"],
            product=device["product"],
            units=device["units"],
            shared=device["shared"],
        ),
        stack=Stack(
            library=device["comm"],
            version=device["comm_version"],
            torch=versions.get("torch") or "",
        ),
        portagpu=versions["portagpu"] or "",
        made=info.started,
        entries=tuple(_entry(*key, results) for key, results in groups.items()),
    )


def _entry(operation: str, dtype: str, ranks: int, results: Sequence[Result]) -> Entry:
    points = [
        (
            decode(Candidate, each.extra["chosen"], each.id),
            decode(Point, each.extra["point"], each.id),
        )
        for each in results
    ]
    return Entry(
        operation=operation,
        dtype=dtype,
        ranks=ranks,
        nodes=1,
        ranges=in_ranges(points),
        fit=_fit(operation, ranks, results, "chosen_us"),
        default_fit=_fit(operation, ranks, results, "default_us"),
    )


def _fit(operation: str, ranks: int, results: Sequence[Result], times: str) -> Fit | None:
    samples = [
        (each.extra["point"]["size_bytes"], time) for each in results for time in each.extra[times]
    ]
    try:
        return fit_line(operation, ranks, samples)
    except ValueError:
        return None
