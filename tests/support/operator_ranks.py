"""What ``test_search_operators`` asks of the operator database of torch, in another process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from portagpu.devices.precision import Support
from portagpu.suites.search.area import AREAS, Area, NotSearchable, load_area
from portagpu.suites.search.operators import database
from portagpu.suites.search.operators.area import judged
from portagpu.suites.search.operators.more import MORE, has_more
from portagpu.suites.search.operators.samples import enlarged, nudged, samples, widened
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from portagpu.runs.world import Rank

CONVOLUTION, NORM = "nn.functional.conv3d", "nn.functional.group_norm"
SIZED = ("exp", "sum", "_segment_reduce", CONVOLUTION, NORM)
ASIDE = ("nn.functional.dropout", "empty", "bernoulli", "linalg.solve")


def everything(rank: Rank, step: int, faults: list[list[str]]) -> dict[str, Any]:
    """All of it, once: torch is slow to load its database."""
    areas = [load_area(each) for each in AREAS if each.startswith("operators-")]
    absent = _without_expecttest(rank, areas[0])
    operators = database.operators().values()
    return {
        "listed": {each.name: len(each.listed(rank.gpu) or []) for each in areas},
        "claimed": sum(
            rank.gpu.precision.support(getattr(torch, dtype)) is not Support.NONE
            for each in operators
            for dtype in database.claimed_dtypes(each, "cpu")
        ),
        "more": sum(
            has_more(each, dtype)
            for each in operators
            for dtype in database.claimed_dtypes(each, "cpu")
            if rank.gpu.precision.support(getattr(torch, dtype)) is not Support.NONE
        ),
        "differences": _differences(rank, areas, step),
        "aside": {each: judged(rank.gpu, each, "", "float32").aside for each in ASIDE},
        "faults": {name: _with_fault(rank, area, name, pair) for area, name, *pair in faults},
        "nudged": _nudged(),
        "orders": {each.name: [_order(rank, each, seed) for seed in (0, 1)] for each in areas},
        "sizes": {each: _sizes(each) for each in SIZED},
        "enlarged": _enlarged(),
        "missing": {"no expecttest": absent, **_other_databases(rank, areas[0])},
    }


def _differences(rank: Rank, areas: list[Area], step: int) -> list[str]:
    """The difference of every ``step``th pair."""
    every = [(area, program) for area in areas for program in area.listed(rank.gpu) or []]
    return [area.difference(rank, program) for area, program in every[::step]]


def _with_fault(rank: Rank, area: str, name: str, pair: list[str]) -> str:
    fault = next(each for each in faults_of(area) if each.name == name)
    with fault.apply():
        return judged(rank.gpu, *pair).difference


def _reason(rank: Rank, area: Area) -> str:
    database.operators.cache_clear()
    try:
        area.listed(rank.gpu)
    except NotSearchable as error:
        return str(error)
    return ""


def _without_expecttest(rank: Rank, area: Area) -> str:
    sys.modules["expecttest"] = None  # type: ignore[assignment]
    reported = _reason(rank, area)
    del sys.modules["expecttest"]
    return reported


def _other_databases(rank: Rank, area: Area) -> dict[str, str]:
    from torch.testing._internal import common_methods_invocations as invocations

    other = type("OpInfo", (), dict.fromkeys(database._NEEDED))()
    del type(other).get_decorators
    invocations.op_db = [other]
    lacking = _reason(rank, area)
    del invocations.op_db
    return {"no get_decorators": lacking, "no op_db": _reason(rank, area)}


def _order(rank: Rank, area: Area, seed: int) -> dict[str, Any]:
    """What runs before the first operator runs a second time, after what torch's database lacks."""
    ordered = [given for [(_, given)] in area.ordered(area.listed(rank.gpu) or [], seed)]
    every = [given for given in ordered if given["half"] != MORE]
    assert all(given["half"] == MORE for given in ordered[: len(ordered) - len(every)])
    names = [(given["op"], given["variant"]) for given in every]
    runs = next(k for k in range(len(names)) if names[k] in set(names[:k]))
    return {
        "runs": runs,
        "operators": len(set(names)),
        "dtypes": len({given["dtype"] for given in every[:runs]}),
        "order": names[:runs],
    }


def _sizes(name: str) -> list[Any]:
    """The shape of each sample's first tensor, and whether torch made it so, in both halves."""
    operator = next(each for (one, _), each in database.operators().items() if one == name)
    halves = [samples(operator, torch.float32, False, half) for half in (0, 1)]
    # that of four dimensions is in both halves
    every = {number: (sample, own) for half in halves for number, sample, own in half}
    assert len(every) == len(samples(operator, torch.float32, False))
    return [["x".join(map(str, sample.input.shape)), own] for sample, own in every.values()]


def _enlarged() -> list[Any]:
    from torch.testing._internal.opinfo.core import SampleInput

    large = enlarged(SampleInput(torch.tensor([[1.0, 2.0]], dtype=torch.float16)), 0).input
    within = bool(((large >= 1) & (large <= 2)).all())
    return [list(large.shape), within, str(large.dtype)]


def _nudged() -> list[Any]:
    """A sample with a leaf nudged up, another one down, and a wide dtype."""
    from torch.testing._internal.opinfo.core import SampleInput

    numbers = torch.tensor([2.0, 2.0])
    wide = widened(SampleInput(numbers, args=(2 * numbers, torch.tensor([1, 2]))), torch.float32)
    up = nudged(wide, torch.float32, 0.25, 0, 0)
    down = nudged(wide, torch.float32, 0.25, 1, 1)
    return [up.input.tolist(), down.args[0].tolist(), str(wide.input.dtype), up.args[1].tolist()]
