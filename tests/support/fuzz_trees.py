"""Mutated trees of kernel files for whatever reads a recording.

``info``, its topology and ``bringup --replay`` may answer with a document or with RecordingError,
whatever a tree holds. Anything else is a fault: another exception, too much time, a file that stays
open, a word from outside the tree, a control character in what is shown. As a script, over the
project's own machines and the recorded topologies where there are any:

    python tests/support/fuzz_trees.py 2000  # mutated trees in all, shared among the seeds
    python tests/support/fuzz_trees.py 2000 --seed 7
    python tests/support/fuzz_trees.py 2000 --texts    # what tools print, through the same readers
    python tests/support/fuzz_trees.py 2000 --published  # published outputs of tools, likewise
    python tests/support/fuzz_trees.py --show NAME NUMBER FOLDER  # one tree again, to FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import html
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from portagpu.base.errors import RecordingError
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import Recording
from portagpu.cli._bringup_view import recording_lines
from portagpu.cli._info_view import sections
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings.model import FormatError
from portagpu.machine.inventory.routes import topology_document
from portagpu.reports.html import render as report_page
from portagpu.reports.junit import render as junit
from portagpu.runs.results.plain import UNSAFE, json_text
from portagpu.runs.results.wording import failures_text, headline
from tests.support.fuzz_formats import RECORDINGS, TooSlow, format_modules, mutate, stop
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.growth_formats import samples
from tests.support.host_trees import aarch64, gfx942_node, pci_device, two_socket_x86

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from portagpu.runs.results.run import Result

CPU_S: Final = 20.0
"""CPU time that one tree may take; an unchanged one takes some hundredths of a second."""
_PUBLISHED_BYTES: Final = 1 << 16
_ANCHOR: Final = re.compile(r' id="([^"]*)"')
_LINK: Final = re.compile(r' href="#([^"]*)"')
OUTSIDE: Final = "portagpu-outside-of-the-recording"
"""What a file next to each tree says: it must be in no document."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A tree: files by path, and links with what they say."""

    name: str
    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """How many trees ended how; ``faults`` name the seed, the number and what happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, int, str]] = field(default_factory=list)
    slowest_s: float = 0.0


def _bytes(files: dict[str, str]) -> dict[str, bytes]:
    return {path: (text + "\n").encode() for path, text in files.items()}


def own() -> Iterator[Machine]:
    """Machines written from the kernel's documentation."""
    gpus = [nvidia_gpu(n) for n in range(2)] + [amd_gpu(n, parts=1 if n < 4 else 8) for n in (3, 4)]
    files, links = machine(*gpus)
    host = two_socket_x86() | {
        "proc/self/mountinfo": "2 2 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "0 0 0:0 / /dev/shm rw - tmpfs shm rw,size=65536k",
        "proc/self/cgroup": "0::/docker/a",
        "sys/fs/cgroup/docker/a/cpu.max": "150000 100000",
        "sys/fs/cgroup/docker/a/memory.max": "1073741824",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-3",
        "sys/class/thermal/thermal_zone0/temp": "45000",
        "sys/class/thermal/thermal_zone0/trip_point_0_type": "critical",
        "sys/class/thermal/thermal_zone0/trip_point_0_temp": "100000",
        "sys/class/hwmon/hwmon0/temp1_input": "51000",
        "sys/class/hwmon/hwmon0/temp1_crit": "90000",
        "sys/devices/system/edac/mc/mc0/ce_count": "3",
        "sys/devices/system/edac/mc/mc0/ue_count": "0",
        "sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count": "3",
        "sys/devices/system/edac/mc/mc0/dimm0/dimm_label": "CPU0 A1",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "1",
        "sys/class/infiniband/mlx5_0/device/numa_node": "1",
        "proc/cmdline": "iommu=pt pci=realloc=off",
        "proc/sys/kernel/numa_balancing": "1",
    }
    yield Machine("eight", _bytes(host | files), dict(links))
    yield Machine("aarch64", _bytes(aarch64() | pci_device("0000:01:00.0", "0x020700", "0x15b3")))
    yield Machine("kfd", _bytes(gfx942_node(1, 0x8300) | gfx942_node(2, 0x8400)))


def recorded() -> Iterator[Machine]:
    """The published topologies, where they lie next to this checkout, and their links."""
    for folder in sorted((RECORDINGS / "kfd").glob("*/")) + sorted(
        (RECORDINGS / "sysfs-infiniband").glob("*/")
    ):
        files = {
            str(each.relative_to(folder)): each.read_bytes()
            for each in sorted(folder.rglob("*"))
            if each.is_file() and not each.is_symlink()
        }
        if files and len(files) <= 600:
            yield Machine(f"recorded/{folder.name}", files)


def machines() -> Iterator[Machine]:
    """Every tree."""
    yield from own()
    yield from recorded()


def texts() -> Iterator[Machine]:
    """What tools print, of every format: a recording of one file."""
    for module in format_modules():
        for number, text in enumerate(samples(module)):
            yield Machine(f"text/{module}/{number}", {"text": text.encode()})


def published() -> Iterator[Machine]:
    """The published outputs of tools, where they lie next to this checkout: each a recording."""
    for path in sorted(RECORDINGS.rglob("*")):
        small = path.is_file() and path.stat().st_size <= _PUBLISHED_BYTES
        if small and path.name != "MANIFEST.md" and "sys" not in path.parts:
            data = path.read_bytes()
            with contextlib.suppress(FormatError):
                read_text(decode_text(data))
                yield Machine(f"published/{path.relative_to(RECORDINGS)}", {"text": data})


# -- mutations -----------------------------------------------------------------------------------

_NUMBERS: Final = (
    b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"-1", b"-9" + b"9" * 400, b"1e999", b"nan",
    b"inf",
    b"18446744073709551615", b"18446744073709551616", b"9223372036854775808", b"4294967295", b"0",
    "\u0663\u0664".encode(), "\u00b2".encode(), b"0x", b"1_000", b"+5", b" 7 ", b"", b"\n\n\n",
    b"0-8191",
    b"0-65535," * 2000, b"0-99999999999", b"1," * 20000,
)  # fmt: skip
_WORDS: Final = (
    b"\x1b[2J\x9b31m", "\u0085\u009b\u202e\u2066<b>&\ufeff".encode(), b"\xff\xfe\xed\xa0\x80",
    b"\0" * 50,
    b"a" * 70000, b"\n" * 30000, b": : :\n" * 3000, b"\n\nprocessor\t: 1\n" * 3000, b"/a" * 2000,
    b"%s{}{0}",
)  # fmt: skip
_TARGETS: Final = (
    "/", "/etc", "/proc/self/environ", "/proc/self/root", "/dev/zero", "..", "../..",
    "../../../../../..",
    ".", "loop", "../outside", "../../../../../../outside", "/sys/class",
    "/sys/devices/system/cpu",
    "../../../sys", "\udc80", "x" * 3000,
)  # fmt: skip
_NAMES: Final = (
    "0", "99999999999999999999", "\u0663", "\u00b2", "-1", "cpu9", "node7", "card5", "\x1b[31m",
    "a\nb",
    "\u202e", "\udcff", "9" * 200, "index3", "hwmon7", "thermal_zone9", "0000:zz:00.0", "<b>",
)  # fmt: skip


def _path(tree: Machine, rng: random.Random) -> str:
    return rng.choice(sorted(tree.files) or [""])


def _number(tree: Machine, rng: random.Random) -> None:
    """Another value in the place of a file, or of one of its words."""
    path = _path(tree, rng)
    words = tree.files.get(path, b"").split(b" ")
    words[rng.randrange(len(words))] = rng.choice(_NUMBERS)
    tree.files[path] = b" ".join(words) if rng.random() < 0.6 else rng.choice(_NUMBERS)


def _word(tree: Machine, rng: random.Random) -> None:
    path = _path(tree, rng)
    data = tree.files.get(path, b"")
    at = rng.randrange(len(data) + 1)
    tree.files[path] = data[:at] + rng.choice(_WORDS) + data[at:]


def _bytes_of(tree: Machine, rng: random.Random) -> None:
    path = _path(tree, rng)
    tree.files[path] = mutate(tree.files.get(path, b""), rng)[: 1 << 18]


def _blank(tree: Machine, rng: random.Random) -> None:
    path = _path(tree, rng)
    lines = tree.files.get(path, b"").split(b"\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice((b"", b" ", b"\t", b"x")))
    tree.files[path] = b"\n".join(lines)


def _drop(tree: Machine, rng: random.Random) -> None:
    path = _path(tree, rng)
    folder = path.rsplit("/", rng.randrange(1, 4))[0]
    for each in [each for each in tree.files if each == path or each.startswith(f"{folder}/")]:
        if rng.random() < 0.5:
            del tree.files[each]


def _copy(tree: Machine, rng: random.Random) -> None:
    """A folder a second time, under a name that is none."""
    folder = _path(tree, rng).rsplit("/", rng.randrange(1, 4))[0]
    other = f"{folder.rpartition('/')[0]}/{rng.choice(_NAMES)}".strip("/")
    for each in [each for each in tree.files if each.startswith(f"{folder}/")][:200]:
        tree.files[other + each[len(folder) :]] = tree.files[each]


def _link(tree: Machine, rng: random.Random) -> None:
    """A link in the place of a file or of a folder above it."""
    path = "/".join(_path(tree, rng).split("/")[: rng.randrange(1, 12)])
    for each in [each for each in tree.files if each == path or each.startswith(f"{path}/")]:
        del tree.files[each]
    tree.links[path] = rng.choice((*_TARGETS, _path(tree, rng), f"/{_path(tree, rng)}"))


def _swap(tree: Machine, rng: random.Random) -> None:
    one, two = _path(tree, rng), _path(tree, rng)
    tree.files[one], tree.files[two] = tree.files.get(two, b""), tree.files.get(one, b"")


_MUTATIONS: Final[tuple[Callable[[Machine, random.Random], None], ...]] = (
    _number, _number, _number, _word, _bytes_of, _blank, _drop, _copy, _link, _link, _swap,
)  # fmt: skip


_OF_TEXTS: Final = (_number, _word, _blank, _bytes_of, _bytes_of, _bytes_of)


def mutation(origin: Machine, number: int, seed: int) -> Machine:
    """Mutation ``number`` of a tree: the same every time. Number 0 is the tree itself."""
    rng = random.Random(f"{seed}:{origin.name}:{number}")  # noqa: S311 - no secret
    tree = Machine(origin.name, dict(origin.files), dict(origin.links))
    mutations = _OF_TEXTS if len(origin.files) == 1 else _MUTATIONS
    for _ in range(rng.choice((1, 1, 2, 4)) if number else 0):
        rng.choice(mutations)(tree, rng)
    return tree


def write(tree: Machine, root: Path) -> Path:
    """Write the tree below ``root``; what its links make impossible is left out."""
    root.mkdir(parents=True)
    (root.parent / "outside").write_text(OUTSIDE)
    # links last, so that no file is written through one
    for path, data in tree.files.items():
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        except OSError:
            continue
    for path, target in tree.links.items():
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
        except OSError:
            continue
    return root


# -- reading -------------------------------------------------------------------------------------


def read(root: Path) -> str | None:
    """What is wrong with the answers to a recording; None where nothing is."""
    recording = Recording(root)
    document = collect(machine=recording)
    texts = {"info": json_text(document, indent=2)}
    texts["topology"] = json_text(topology_document(recording.topology()))
    run = bringup(BringupOptions(replay=recording))
    texts["run"], texts["junit"], texts["page"] = run.to_text(), junit(run), report_page(run)
    texts["shown"] = "".join(
        label + text for section in sections(document) for label, text in section.rows
    )
    by_gate: dict[str, list[Result]] = {}
    for result in run.results:
        by_gate.setdefault(result.area, []).append(result)
    gates = [headline(results) for results in by_gate.values()]
    lines = [
        *recording_lines(run),
        *gates,
        *failures_text(run.results),
        run.summary_line(),
        run.next_step,
    ]
    texts["terminal"] = "".join(lines)
    broke = [result.reason for result in run.results if "the check broke" in result.reason]
    if broke:
        return broke[0]
    for name, text in texts.items():
        if OUTSIDE in text or "root:x:0" in text:
            return f"{name} holds what is outside of the recording"
        odd = UNSAFE.search(text)
        if odd is not None:
            return f"{name} holds {odd.group()!r}"
    return _wrong_links(texts["page"])


def _wrong_links(page: str) -> str | None:
    """What is wrong with a page's anchors: one that is there twice, a link that leads nowhere."""
    anchors = Counter(map(html.unescape, _ANCHOR.findall(page)))
    twice = [anchor for anchor, times in anchors.items() if times > 1]
    if twice:
        return f"the page has the anchor {twice[0]!r} twice"
    links = {unquote(html.unescape(link)) for link in _LINK.findall(page)}
    lost = sorted(links - anchors.keys())
    return f"the page has no anchor {lost[0]!r}" if lost else None


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _outcome(root: Path) -> tuple[str, str]:
    before = _open_files()
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        wrong = read(root)
    except RecordingError as error:
        wrong = None if str(error).isprintable() else f"RecordingError of many lines: {error}"
        return ("wrong", wrong) if wrong else ("refused", "")
    except TooSlow:
        return "slow", f"more than {CPU_S:g} s of CPU time"
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is looked for
        return "raised", f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _open_files() > before:
        return "open files", "more files are open than before"
    return ("wrong", wrong) if wrong else ("read", "")


def fuzz(seeds: Iterable[Machine], each: int, seed: int, folder: Path) -> Report:
    """Read every seed and ``each`` mutations of it in this process, below ``folder``."""
    report = Report()
    signal.signal(signal.SIGPROF, stop)
    for origin in seeds:
        for number in range(each + 1):
            root = write(mutation(origin, number, seed), folder / "case" / "machine")
            begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            outcome, detail = _outcome(root)
            spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun
            report.slowest_s = max(report.slowest_s, spent)
            report.outcomes[outcome] += 1
            if outcome not in ("read", "refused"):
                report.faults.append((origin.name, number, f"{outcome}: {detail}"))
            shutil.rmtree(folder / "case")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Read mutated trees of kernel files.")
    parser.add_argument("count", nargs="?", type=int, default=500, help="mutated trees in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--texts", action="store_true", help="what tools print, and no trees")
    parser.add_argument("--published", action="store_true", help="published outputs, and no trees")
    parser.add_argument("--show", nargs=3, metavar=("NAME", "NUMBER", "FOLDER"))
    options = parser.parse_args()
    seeds = [*(texts() if options.texts else published() if options.published else machines())]
    if options.show:
        name, number, folder = options.show
        origin = next(each for each in seeds if each.name == name)
        write(mutation(origin, int(number), options.seed), Path(folder))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz(seeds, -(-options.count // len(seeds)), options.seed, Path(folder))
    print(f"{len(seeds)} seeds, {sum(report.outcomes.values())} trees, {dict(report.outcomes)}")
    print(f"slowest tree: {report.slowest_s:.3f} s of CPU time")
    for name, number, what in report.faults:
        print(f"FAULT {name} {number}: {what}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
