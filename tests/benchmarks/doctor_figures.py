"""What the doctor finds in dumps and logs next to what they show.

``python -m tests.benchmarks.doctor_figures [FOLDER ...]`` prints two tables. The first has torch's
own cases of flight-recorder dumps, ours, and dumps of real ranks over Gloo, with the answers of
torch's analyser and of the doctor. The second has logs: the lines that are of a library, and the
findings next to those that a reader found. A FOLDER has recorded logs of
``tests/vendor_texts/log_readings.toml`` by name; those that no folder has are left out, and said
to be."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import pickle
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.checks.collectives_doctor import DoctorOptions, doctor
from portagpu.checks.collectives_doctor.logs import Job, read_log
from portagpu.runs.results.run import Verdict
from tests.process.test_doctor_dumps import KINDS
from tests.support.flight_recorder_cases import DumpCase, own_cases, torch_cases
from tests.vendor_texts.test_doctor_logs import EVENTS, WARNINGS, line, rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.runs.results.run import Run

READINGS = Path(__file__).resolve().parents[1] / "vendor_texts/log_readings.toml"


# ---- dumps


@dataclass(frozen=True)
class DumpFigure:
    """A case with both answers; torch's begins with "crash" where its analyser ended so."""

    case: DumpCase
    torch: str
    ours: tuple[str, ...]

    @property
    def is_solved(self) -> bool:
        return sorted(self.ours) == sorted(self.case.shows)

    @property
    def torch_crashed(self) -> bool:
        return self.torch.startswith("crash")


def findings(run: Run) -> tuple[str, ...]:
    """The findings that are not PASS."""
    return tuple(
        each.id.rpartition("/")[2] for each in run.results if each.verdict is not Verdict.PASS
    )


def our_answer(documents: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(documents):
            (Path(folder) / f"rank_{number}").write_bytes(pickle.dumps(each, 2))
        return findings(doctor(DoctorOptions(paths=[folder])))


def torch_answer(case: DumpCase) -> str:
    """The state of torch's comparison, "passes", "fails", "fails: missing" where it only misses
    ranks, or "crash" with the error.
    """
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.types import Op
    from torch.distributed.flight_recorder.components.utils import match_one_event

    documents = copy.deepcopy(list(case.documents))
    with _quiet():
        try:
            if case.pair:
                one, other = (each["entries"][0] for each in documents)
                members = {"0": set(range(len(documents)))}
                Op(one, members, "0")
                return str(match_one_event(one, other, members, "0").state.name)
            details = {str(n): {**each, "rank": n} for n, each in enumerate(documents)}
            version = documents[0]["version"]
            built = build_db(details, JobConfig().parse_args([]), version)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return f"crash: {type(error).__name__}"
    if any(not each.pass_check for each in built.collectives):
        return "fails"
    return "fails: missing" if any(e.missing_ranks for e in built.collectives) else "passes"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the analyser prints and logs."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def real_cases() -> list[DumpCase]:
    """Dumps of three ranks over Gloo, for each kind of fault of ``tests.support.hang_ranks``."""
    from portagpu.runs.world import Ranks

    found = []
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        for kind, shows in KINDS.items():
            own = Path(folder) / kind
            own.mkdir()
            done = ranks.run(
                "tests.support.hang_ranks:plant",
                3,
                arguments={"kind": kind, "folder": str(own)},
                backend="cpu",
                timeout_s=30.0,
            )
            if not done.ok:
                raise RuntimeError(done.sentence)
            read = [pickle.loads((own / f"rank_{n}").read_bytes()) for n in range(3)]  # noqa: S301
            found.append(DumpCase(f"Gloo: {kind}", read, tuple(name for name, _ in shows)))
    return found


def dump_figures(cases: Sequence[DumpCase]) -> list[DumpFigure]:
    return [DumpFigure(case, torch_answer(case), our_answer(case.documents)) for case in cases]


# ---- logs


@dataclass(frozen=True)
class LogFigure:
    """A log: its lines, those that are read, the findings, and those that it shows."""

    name: str
    lines: int
    read: int
    found: tuple[str, ...]
    shows: tuple[str, ...]
    lacks: tuple[str, ...]
    """Words that its summary should have, and has not; quotations that the log has not."""

    @property
    def hits(self) -> int:
        return sum((Counter(self.found) & Counter(self.shows)).values())

    @property
    def misses(self) -> tuple[str, ...]:
        return tuple((Counter(self.shows) - Counter(self.found)).elements()) + self.lacks

    @property
    def beyond(self) -> tuple[str, ...]:
        return tuple((Counter(self.found) - Counter(self.shows)).elements())


def log_figure(
    name: str, text: str, shows: Sequence[str], says: Sequence[str] = (), quotes: Sequence[str] = ()
) -> LogFigure:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.log"
        file.write_text(text, encoding="utf-8")
        run = doctor(DoctorOptions(paths=[file]))
    job = Job()
    read_log(text, job)
    summary = next(each.reason for each in run.results if each.id.endswith("/log"))
    lacks = [f"summary: {each}" for each in says if each not in summary]
    lacks += [f"not in the log: {each}" for each in quotes if each not in text]
    lines = len(text.splitlines())
    return LogFigure(name, lines, job.lines, findings(run), tuple(shows), tuple(lacks))


def recorded_logs(folders: Sequence[Path]) -> Iterator[LogFigure | str]:
    """A figure of each log that was read by hand, or its name where no folder has it."""
    for each in tomllib.loads(READINGS.read_text(encoding="utf-8"))["log"]:
        file = next((f / each["name"] for f in folders if (f / each["name"]).is_file()), None)
        if file is None:
            yield each["name"]
            continue
        shown = each.get("finding", ())
        text = file.read_text(encoding="utf-8", errors="replace")
        yield log_figure(
            each["name"],
            text,
            [one["id"] for one in shown],
            each["says"],
            [one["quote"] for one in shown],
        )


def written_logs() -> Iterator[LogFigure]:
    """A log for each line that a vendor's table knows, with the ranks around it."""
    for message, finding in {**EVENTS, **WARNINGS}.items():
        level = "WARN" if message in WARNINGS else "INFO"
        lines = [*rank(0, 2), *rank(1, 2), line(message, level=level)]
        yield log_figure(f'written: "{message[:50]}"', "\n".join(lines) + "\n", [finding])


# ---- the tables


def print_dumps(figures: Sequence[DumpFigure]) -> None:
    print(f"{'dumps':<54}{'torch':<28}{'doctor'}")
    for each in figures:
        mark = "" if each.is_solved else f"   WRONG: it shows {', '.join(each.case.shows)}"
        print(f"{each.case.name:<54}{each.torch:<28}{', '.join(each.ours) or 'in step'}{mark}")
    crashed = [each for each in figures if each.torch_crashed]
    print(
        f"\n{sum(each.is_solved for each in figures)} of {len(figures)} solved; torch's analyser "
        f"ends with an error in {len(crashed)}, of which {sum(e.is_solved for e in crashed)} solved"
    )


def print_logs(figures: Sequence[LogFigure | str]) -> None:
    print(f"\n{'log':<66}{'lines':>6}{'read':>6}{'hits':>6}  missed; beyond")
    for each in figures:
        if isinstance(each, str):
            print(f"{each:<66}  not given")
            continue
        print(
            f"{each.name:<66}{each.lines:>6}{each.read:>6}{each.hits:>3}/{len(each.shows):<2}  "
            f"{', '.join(each.misses) or '-'}; {', '.join(each.beyond) or '-'}"
        )


def main(folders: Sequence[str]) -> int:
    dumps = dump_figures([*torch_cases(), *own_cases(), *real_cases()])
    print_dumps(dumps)
    logs = [*recorded_logs([Path(each) for each in folders]), *written_logs()]
    print_logs(logs)
    read = [each for each in logs if isinstance(each, LogFigure)]
    wrong = [each for each in read if each.misses or each.beyond]
    print(f"\n{len(read) - len(wrong)} of {len(read)} logs: every finding, and none beyond")
    return int(bool(wrong) or not all(each.is_solved for each in dumps))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
