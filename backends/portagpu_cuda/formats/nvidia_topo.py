"""``nvidia-smi topo -m``: the path between each pair of GPUs and NICs; also ``topo -p2p``.

One matrix whose rows and columns are devices. ``-m`` has the CPUs and the NUMA node next to each
GPU and, since driver 525, names NICs in a legend below; before that they stood in the matrix by
name.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, stated
from portagpu.facts.readings.model import (
    End,
    Event,
    Findings,
    FormatError,
    Link,
    Node,
    Reading,
    without_none,
)
from portagpu_cuda.formats._nvidia import VENDOR

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "nvidia-smi topo"

_COLOUR: Final = re.compile(r"\x1b?\[\d{1,2}m")
_DEVICE: Final = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|[a-z]\w{0,30}_\w{0,30}")
_GPU: Final = re.compile(r"GPU(\d{1,4})")
_NVLINKS: Final = re.compile(r"NV(\d{1,3})")
_LEGEND: Final = re.compile(r"\s*(NIC\d{1,4}): (\S{1,60})\s*")
_CPUS: Final = re.compile(r"\d[\d,-]*")
_COMMAND: Final = re.compile(r"nvidia-smi topo -p2p ([a-z]+)")

_SELF: Final = "X"
# the tool's own legend; SOC is what SYS was called before driver 384
_WAYS: Final = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS", "SOC"})
# legend of topo -p2p: Status Ok; chipset, GPU, topology not supported; disabled by registry key
_ACCESS: Final = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False,
                  "U": None}  # fmt: skip
# of the -p2p options, reading and writing are access; atomics and NVLink are something else
_ACCESS_OPTIONS: Final = frozenset("rw")

_CELL: Final = r"(?:X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC)"
_WAY: Final = r"(?:X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV#|OK|CNS|GNS|TNS|NS|DR|U|C2C) +="
_LEGEND_ALONE: Final = re.compile(rf"\s*(?:Legend:\s*)?X +=.*\n\s*{_WAY}")
SHAPES: Final = (
    Shape(
        # the diagonal of the matrix is in its first row
        r"GPU0(?:[ \t]+(?:(?:GPU|NIC)\d{1,4}|[a-z]\w{0,30}_\w{0,30}))*[ \t]*"
        r"(?:CPU Affinity[^\n]*)?\nGPU0[ \t]+X\b",
        re.compile(rf"\s*(?:GPU\d|NIC\d|[a-z]\w{{0,30}}_\w{{0,30}}\s|NIC Legend:|Legend:|{_WAY})"),
        anywhere=True,
    ),
    # the end of a matrix, without its head
    Shape(
        rf"GPU\d{{1,4}}[ \t]+(?:{_CELL}[ \t]+){{1,400}}{_CELL}\b",
        re.compile(rf"\s*(?:GPU\d|NIC\d|[a-z]\w{{0,30}}_\w{{0,30}}\s|NIC Legend:|Legend:|{_WAY})"),
        weak=True,
        checks_its_end=True,
    ),
    # the legend alone says nothing of a machine
    Shape(
        rf"Legend:\s*$|Legend:\s*\n{_WAY}",
        re.compile(rf"\s*(?:Legend:|{_WAY})"),
        weak=True,
    ),
)


_MIN_OF_A_MESH: Final = 4
_MESH: Final = 0.6
"""Of the pairs of a machine in which each GPU reaches all others over NVLink; V100s and P100s in a
cube, and cards with bridges, have fewer pairs of one kind."""
_GUIDE: Final = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"


@dataclass(frozen=True, slots=True)
class _Matrix:
    columns: list[str]
    affinities: int
    """How many of the columns "CPU Affinity", "NUMA Affinity" and "GPU NUMA ID" there are."""
    rows: list[list[str]] = field(default_factory=list)


def matches(text: str) -> bool:
    """Whether a matrix of devices stands at the beginning."""
    head = _COLOUR.sub("", text[:20_000])
    lines = head.splitlines()
    return (
        _LEGEND_ALONE.match(head) is not None
        or any(
            _columns(line) is not None and _is_row(lines[at + 1])
            for at, line in enumerate(lines[:-1])
            if at < 20
        )
        or re.match(rf"\s*{SHAPES[1].begins}", head) is not None
    )


def parse(text: str) -> Findings:
    """A link for each cell of the matrices, and a reading for each GPU's CPUs and NUMA node."""
    plain = _COLOUR.sub("", text)
    matrices, names = _read_matrices(plain)
    if not matrices and _LEGEND_ALONE.match(plain) is not None:
        return Findings(kind=KIND)
    if not any(matrix.rows for matrix in matrices):
        raise FormatError(f"{KIND}: there is no matrix of devices in the text")
    option = _COMMAND.search(plain)
    of_access = option is None or not set(option.group(1)).isdisjoint(_ACCESS_OPTIONS)
    ends: dict[str, End] = {}
    links: list[Link] = []
    readings: list[Reading] = []
    problems: dict[str, None] = {}
    broken = False
    for matrix in matrices:
        described = sum(_GPU.fullmatch(row[0]) is not None for row in matrix.rows)
        if described < (
            columns := sum(_GPU.fullmatch(each) is not None for each in matrix.columns)
        ):
            problems[f"the matrix has the rows of {described} of {columns} GPUs"] = None
            broken = True
        for label, *cells in matrix.rows:
            width = len(matrix.columns)
            if len(cells) < width:
                problems[f"the row of {label} breaks off"] = None
                broken = True
            for column, word in zip(matrix.columns, cells[:width], strict=False):
                a, b = (ends.setdefault(name, _end(name, names)) for name in (label, column))
                link = _link(a, b, word, of_access)
                if link is not None:
                    links.append(link)
                elif word != _SELF:
                    problems[f"a cell of the row of {label} is not in the legend"] = None
            readings.extend(_reading(label, cells[width:], matrix.affinities))
    return Findings(
        kind=KIND,
        readings=tuple(readings),
        links=tuple(links),
        events=tuple(_odd_one(links)),
        problems=tuple(problems),
        breaks_off=broken,
    )


def _odd_one(links: list[Link]) -> Iterator[Event]:
    """The GPU or the pair without the NVLinks that all other pairs have."""
    ways = {
        frozenset((link.a.name, link.b.name)): link.path
        for link in links
        if link.kind in ("nvlink", "pcie") and link.a.node is link.b.node is Node.GPU
    }
    gpus = frozenset().union(*ways)
    if len(gpus) < _MIN_OF_A_MESH or len(ways) < len(gpus) * (len(gpus) - 1) // 2:
        return
    usual, count = Counter(ways.values()).most_common(1)[0]
    odd = [pair for pair, way in ways.items() if way != usual]
    shared = frozenset.intersection(*odd) if odd else frozenset()
    if not shared or usual is None or not usual.startswith("NV") or count < _MESH * len(ways):
        return
    who = " and ".join(sorted(shared))
    what = ", ".join(sorted({ways[pair] or "" for pair in odd}))
    yield Event(
        source=KIND,
        vendor=VENDOR,
        code="odd NVLinks",
        meaning=f"{who}: {what} to {len(odd)} GPU(s), while all other pairs have {usual}",
        action="compare the products with nvidia-smi -L; of a card of the same kind its links are "
        "lost: see nvidia-smi nvlink -s and dmesg",
        todo="monitor",
        reference=_GUIDE,
        line=f"{who} {what}",
        device=f"GPU {who.removeprefix('GPU')}" if len(shared) == 1 else None,
        unsettled=True,
    )


def _read_matrices(text: str) -> tuple[list[_Matrix], dict[str, str]]:
    """The matrices, and the device for "NIC0" in the legend."""
    matrices: list[_Matrix] = []
    names: dict[str, str] = {}
    for line in text.splitlines():
        if (found := _columns(line)) is not None:
            matrices.append(found)
        elif matrices and _is_row(line):
            matrices[-1].rows.append(line.split())
        elif (match := _LEGEND.fullmatch(line)) is not None:
            names[match.group(1)] = match.group(2)
    if not matrices:
        matrices = _without_head([line.split() for line in text.splitlines() if _is_row(line)])
    return matrices, names


def _without_head(rows: list[list[str]]) -> list[_Matrix]:
    """The matrix of rows without the names of the columns: a GPU has an X in its own column."""
    numbers = [int(gpu.group(1)) for row in rows if (gpu := _GPU.fullmatch(row[0])) is not None]
    own = [row for row in rows if _GPU.fullmatch(row[0]) is not None]
    if not own or any(
        row[at + 1 : at + 2] != [_SELF] for at, row in zip(numbers, own, strict=True)
    ):
        return []
    gpus = max(numbers) + 1
    width = max(len(list(takewhile(_is_cell, row[1:]))) for row in own)
    columns = [f"GPU{at}" for at in range(gpus)] + [f"NIC{at}" for at in range(width - gpus)]
    return [_Matrix(columns, 0, rows)]


def _columns(line: str) -> _Matrix | None:
    devices, _, affinities = line.partition("CPU Affinity")
    names = devices.split()
    if not names or _GPU.fullmatch(names[0]) is None or not all(map(_DEVICE.fullmatch, names)):
        return None
    return _Matrix(names, (line != devices) + ("NUMA Affinity" in affinities))


def _is_row(line: str) -> bool:
    words = line.split(maxsplit=2)
    return len(words) > 1 and bool(_DEVICE.fullmatch(words[0])) and _is_cell(words[1])


def _is_cell(word: str) -> bool:
    known = word == _SELF or word in _WAYS or word in _ACCESS
    return known or _NVLINKS.fullmatch(word) is not None


def _end(name: str, names: dict[str, str]) -> End:
    gpu = _GPU.fullmatch(name)
    if gpu is not None:
        return End(Node.GPU, name, index=int(gpu.group(1)))
    return End(Node.NIC, names.get(name, name))


def _link(a: End, b: End, word: str, of_access: bool) -> Link | None:
    if (match := _NVLINKS.fullmatch(word)) is not None:
        return Link(source=KIND, a=a, b=b, kind="nvlink", path=word, count=int(match.group(1)))
    if word in _WAYS:
        return Link(source=KIND, a=a, b=b, kind="pcie", path=word)
    if word in _ACCESS:
        access = _ACCESS[word] if of_access else None
        return Link(source=KIND, a=a, b=b, kind="p2p", path=word, peer_access=access)
    return None


def _reading(label: str, words: list[str], affinities: int) -> list[Reading]:
    gpu = _GPU.fullmatch(label)
    if gpu is None:
        return []
    words = words if affinities else []
    cpus = words[0] if words and _CPUS.fullmatch(words[0]) else None
    node = words[1] if affinities > 1 and len(words) > 1 else ""
    own = stated(words[2]) if affinities > 1 and len(words) > 2 else None
    extra = {"cpu affinity": cpus, "numa affinity": stated(node), "gpu numa id": own}
    return [
        Reading(
            source=KIND,
            vendor=VENDOR,
            index=int(gpu.group(1)),
            # "0-1" is several nodes: the GPU is near none of them alone
            numa_node=integer(node) if node.isdecimal() else None,
            extra=without_none(extra),
        )
    ]
