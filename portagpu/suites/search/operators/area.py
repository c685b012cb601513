"""The areas: each lists the pairs of one class of operators; a program is half of a pair."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision import Support
from portagpu.suites.search.area import Area, NotSearchable, one_thread
from portagpu.suites.search.operators.calls import CLASSES, class_of
from portagpu.suites.search.operators.database import claimed_dtypes, operators
from portagpu.suites.search.operators.more import MORE, has_more
from portagpu.suites.search.operators.pair import Judged, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners


NARROW: Final = frozenset(("float32", "float16", "bfloat16"))


class Operators(Area):
    """The operators of one class."""

    start_s = 60.0

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reasons: Counter[str] = Counter()
        self.nothing_compared = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"operators-{self.kind}"

    def load(self) -> None:
        operators()

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        raise NotImplementedError(f"the programs of {self.name} are listed")

    def listed(self, gpu: Backend) -> list[Program]:
        """Every operator of the class, dtype that torch declares for it there, and half.

        ``MORE`` in place of a half are the samples that torch's database lacks.
        """
        import torch

        _hold_float32(gpu)
        return [
            [("samples", {"op": name, "variant": variant, "dtype": dtype, "half": half})]
            for (name, variant), operator in operators().items()
            if class_of(operator) == self.kind
            for dtype in claimed_dtypes(operator, gpu.device.type)
            if _computes(gpu, getattr(torch, dtype))
            for half in (0, 1, MORE)
            if half != MORE or has_more(operator, dtype)
        ]

    def ordered(self, listed: list[Program], seed: int) -> list[Program]:
        """Every operator with half of its samples in one dtype, then in the next; then the rest.

        Neighbours in torch's database are similar operators, and begin with different
        dtypes and halves.
        """
        order = random.Random(seed)  # noqa: S311 - an order, no secret
        dtypes = sorted({given["dtype"] for [(_, given)] in listed})
        order.shuffle(dtypes)
        # float64 is its own reference: the narrower floats say more, and come first
        dtypes.sort(key=lambda dtype: dtype not in NARROW)
        more = [each for each in listed if each[0][1]["half"] == MORE]
        listed = [each for each in listed if each[0][1]["half"] != MORE]
        rows: dict[tuple[str, str], list[list[Program]]] = {}
        for program in sorted(listed, key=lambda program: dtypes.index(program[0][1]["dtype"])):
            given = program[0][1]
            halves = rows.setdefault((given["op"], given["variant"]), [[], []])
            halves[given["half"]].append(program)
        turns = []
        for place, each in enumerate(operators()):
            if each in rows:
                pairs = list(zip(*rows[each], strict=True))
                narrow = sum(pair[0][0][1]["dtype"] in NARROW for pair in pairs) or len(pairs)
                first = place % narrow
                pairs = pairs[first:narrow] + pairs[:first] + pairs[narrow:]
                now = [pair[(place + k) % 2] for k, pair in enumerate(pairs)]
                later = [pair[(place + k + 1) % 2] for k, pair in enumerate(pairs)]
                turns.append((now, later))
        order.shuffle(turns)
        found = [
            program
            for rest in (0, 1)
            for turn in zip_longest(*(each[rest] for each in turns))
            for program in turn
            if program is not None
        ]
        return [*order.sample(more, len(more)), *found]

    def first_pass(self, listed: list[Program]) -> int:
        """What torch's database lacks, and every operator in one dtype."""
        more = [given for [(_, given)] in listed if given["half"] == MORE]
        return len(more) + len({(given["op"], given["variant"]) for [(_, given)] in listed})

    def aside(self) -> Iterator[str]:
        return self.reasons.elements()

    def unjudged(self) -> int:
        return self.nothing_compared

    def calls(self) -> Runners:
        return {"samples": judged}

    def difference(self, rank: Rank, program: Program) -> str:
        _hold_float32(rank.gpu)
        for _, given in program:
            found = judged(rank.gpu, **given)
            self.reasons.update(set(found.aside))
            if found.difference:
                return found.difference
            self.nothing_compared += not found.compared
        return ""


def _computes(gpu: Backend, dtype: torch.dtype) -> bool:
    """Whether the device has tensors of that dtype; those without a row in its table are whole."""
    return gpu.precision.support(dtype) is not Support.NONE


def judged(gpu: Backend, op: str, variant: str, dtype: str, half: int | None = None) -> Judged:
    """What became of one pair, or of half of its samples, or of those that torch lacks.

    Raises NotSearchable where torch does not claim it here.
    """
    import torch

    operator = operators().get((op, variant))
    if operator is None or dtype not in claimed_dtypes(operator, gpu.device.type):
        raise NotSearchable(
            f"torch {torch.__version__} claims no operator {op} {variant or ''}".rstrip()
            + f" in {dtype} on {gpu.device.type}"
        )
    # samples are small
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(gpu.device, operator, getattr(torch, dtype), partial(_computes, gpu), half)


def _hold_float32(gpu: Backend) -> None:
    """Products of float32 are float32 in this process: the bounds are of no narrower format."""
    gpu.set_float32_precision("ieee")


ELEMENTWISE: Final = Operators("elementwise")
MOVEMENT: Final = Operators("movement")
REDUCTIONS: Final = Operators("reductions")
LINALG: Final = Operators("linalg")
NN: Final = Operators("nn")
OTHER: Final = Operators("other")
KINDS: Final[tuple[str, ...]] = tuple(CLASSES)
