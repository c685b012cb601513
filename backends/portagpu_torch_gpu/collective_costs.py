"""What the cost models of both libraries share: one is a fork of the other.

Names are those of the sources that each model's table cites. Bandwidths are in GB/s, times in us.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives.cost import Candidate, Graph, Input, KnownError, Question
from portagpu.devices.collectives.other_ways import OtherWay, other_ways, refusal
from portagpu.facts.vendors import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""The operations that the libraries' models have times for."""
SHARED: Final = frozenset({"all_gather", "reduce_scatter"})
ROOTED: Final = frozenset({"broadcast", "reduce"})
_SEARCHED_CHANNELS: Final = 32
"""MAXCHANNELS / 2 of src/init.cc: a ring search finds no more."""
_NEXT_SPEED: Final = 0.49
"""ncclTopoCompute of src/graph/search.cc tries no speed below this share of the one it has."""


class TableModel:
    """A model whose constants are the table ``cost_model`` of a vendor.

    Next to it, the table ``cost_model_errors`` has how far the model was from published tables.
    """

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self._table: Mapping[str, Any] | None = None

    @property
    def table(self) -> Mapping[str, Any]:
        """The constants; raises Unsupported where the table was left out."""
        if self._table is None:
            found = tables("cost_model").get(self.vendor)
            if found is None:
                raise Unsupported(
                    f"the table of constants of {self.vendor} is missing: install portagpu again"
                )
            self._table = found
        return self._table

    @property
    def library(self) -> str:
        """The library's name."""
        return str(self.table["library"])

    @property
    def version(self) -> str:
        """The version of the library from which the constants are."""
        return str(self.table["version"])

    @property
    def source(self) -> str:
        """The address of the file with the constants."""
        return str(self.table["source"])

    def known_errors(self) -> tuple[KnownError, ...]:
        """How far the model was from published tables, as ``tests/support/pages.py`` writes it."""
        rows = tables("cost_model_errors").get(self.vendor, {}).get("error", ())
        return tuple(
            KnownError(**{"high_bytes": None, **row, "sources": tuple(row["sources"])})
            for row in rows
        )

    def other_ways(self, question: Question, version: str) -> tuple[OtherWay, ...]:
        """The ways of that version of the library that the model has no times for."""
        return other_ways(self._mechanisms, self.library, version, question)

    @property
    def _mechanisms(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.table.get("mechanism", ()))

    def refuse(self, question: Question, version: str) -> None:
        """Raise Unsupported for a way without times, with the reason for that version."""
        rows = self._mechanisms
        for name in (*question.algorithms, *question.graphs, *question.options):
            said = refusal(rows, name, self.library, version, question)
            if name not in self.table["algorithms"] and said is not None:
                raise Unsupported(said)
        if question.operation not in OPERATIONS:
            ways = [each for each in self.other_ways(question, version) if each.may_run]
            said = "".join(f"; {each.name} may do it, {each.reason}" for each in ways)
            raise Unsupported(
                f"the cost model of {self.library} {self.version} has no {question.operation}: it "
                f"has {', '.join(OPERATIONS)}{said}"
            )

    def settings(
        self, question: Question, options: Mapping[str, Sequence[str]]
    ) -> Mapping[str, str]:
        """The value of every option, of which the first value is the default.

        Raises for an operation, an algorithm or an option that the model does not have.
        """
        self.refuse(question, self.version)
        if question.hardware is None:
            raise ValueError("a cost model needs a target: say which GPU it is")
        known = self.table["algorithms"]
        for name in (*question.algorithms, *question.graphs):
            if name not in known:
                raise ValueError(
                    f"{self.library} has no algorithm {name!r}: it has {', '.join(known)}"
                )
        for name, value in question.options.items():
            values = options.get(name, ())
            if not values:
                raise ValueError(
                    f"the cost model of {self.library} has no option {name!r}: it has "
                    f"{', '.join(sorted(options))}"
                )
            if value not in values:
                raise ValueError(f"the option {name} is {', '.join(values)}, not {value!r}")
        if question.nodes > 1 and question.nic_gbs is None and not question.graphs:
            raise ValueError(
                "several nodes need the bandwidth of a network port in GB/s (a port of 400 Gb/s "
                "has 50)"
            )
        return {name: question.options.get(name, values[0]) for name, values in options.items()}


def candidates(
    question: Question, times: Sequence[tuple[str, str, float]]
) -> tuple[Candidate, ...]:
    """What is allowed of (algorithm, protocol, time), each with its bus bandwidth."""
    # the steps of a ring over its ranks are the factor from the algorithm's bandwidth
    factor = steps(question.operation, question.ranks) / question.ranks
    return tuple(
        Candidate(algorithm, protocol, time, question.size_bytes / time / 1e3 * factor)
        for algorithm, protocol, time in times
        if not question.algorithms or algorithm in question.algorithms
    )


def number_of_arch(arch: str) -> int:
    """The decimal number in the name of an architecture ("sm_90a" is 90); 0 without one."""
    found = re.search(r"\d+", arch)
    return int(found[0]) if found else 0


def steps(operation: str, ranks: int) -> int:
    """``nsteps``: the steps of a ring."""
    if operation == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if operation in SHARED else ranks


def log2_floor(number: int) -> int:
    """``log2i``: -1 for 0."""
    return number.bit_length() - 1


def ring_latency(hops: int, between: int, base: float, intra: float, inter: float) -> float:
    """The latency of a ring of this many steps, of which ``between`` are between nodes."""
    return base + (hops - between) * intra + between * inter


def tree_latency(local: int, nodes: int, base: float, intra: float, inter: float) -> float:
    """The latency of a tree: up and down within the nodes, and between them."""
    return base + 2 * ((local - 1) * intra + log2_floor(nodes) * inter)


def time_us(latency: float, size_bytes: int, bandwidth: float) -> float:
    """``ncclTopoGetAlgoTime`` for one operation."""
    return latency + size_bytes / (1000 * bandwidth)


def search(fits: Sequence[tuple[float, int]], max_speed: float, enough: float) -> tuple[int, float]:
    """Channels and their speed, as the first pass of ``ncclTopoCompute`` finds them.

    ``fits`` has the speeds, the fastest first, and how many channels of each fit. They are tried
    from the fastest that is at most ``max_speed``. The largest sum wins, the faster channels if
    equal. The search ends when the sum reaches ``enough``, and when the next speed is less than
    half of the best one.
    """
    best, best_speed = 0, 0.0
    for speed, fitting in [each for each in fits if each[0] <= max_speed] or fits[-1:]:
        if best and speed / best_speed <= _NEXT_SPEED:
            break
        count = min(fitting, _SEARCHED_CHANNELS)
        if count * speed > best * best_speed:
            best, best_speed = count, speed
        if best * best_speed >= enough:
            break
    return (best, best_speed) if best else (1, 0.1)


def fit_count(total: float, each: float) -> int:
    """How many channels of that speed fit into a bandwidth."""
    return math.floor(total / each + 1e-6)


def graph_input(name: str, graph: Graph) -> Input:
    """What the answer says of a graph."""
    return Input(f"channels of {name}", str(graph), graph.how)
