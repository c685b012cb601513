"""What share of the uses of torch.cuda in public code portagpu has an answer for.

    python -m tests.benchmarks.coverage

The uses are those of ``torch_cuda_uses.toml``. One is covered where portagpu has the name, or
docs/migrating.md a row for it. It is literal where writing ``pg`` for ``torch.cuda`` is all there
is to do: the same words run here, or are refused with Unsupported.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).resolve().parent
_GUIDE: Final = _HERE.parents[1] / "docs" / "migrating.md"

_WORDS: Final = {
    "Event": "pg.Event(enable_timing=True)",
    "ExternalStream": "pg.ExternalStream(0)",
    "amp.custom_bwd": "pg.amp.custom_bwd(print)",
    "amp.custom_fwd": "pg.amp.custom_fwd(print)",
    "can_device_access_peer": "pg.can_device_access_peer(0, 1)",
    "cudart": "pg.cudart().cudaProfilerStart()",
    "default_generators": "pg.default_generators[0]",
    "device": "pg.device(0)",
    "graph": "pg.graph(None)",
    "manual_seed": "pg.manual_seed(0)",
    "manual_seed_all": "pg.manual_seed_all(0)",
    "memory._dump_snapshot": "pg.memory._dump_snapshot('snapshot.pickle')",
    "nvtx.range": "with pg.nvtx.range('x'): pass",
    "nvtx.range_pop": "pg.nvtx.range_push('x'); pg.nvtx.range_pop()",
    "nvtx.range_push": "pg.nvtx.range_push('x'); pg.nvtx.range_pop()",
    "set_device": "pg.set_device(0)",
    "set_rng_state": "pg.set_rng_state(pg.get_rng_state())",
    "set_rng_state_all": "pg.set_rng_state_all(pg.get_rng_state_all())",
    "set_stream": "pg.set_stream(pg.current_stream())",
    "stream": "with pg.stream(pg.Stream()): pass",
    "use_mem_pool": "pg.use_mem_pool(None)",
}
"""How a name is called where it needs arguments; else it is called without any."""


@dataclass(frozen=True, slots=True)
class Use:
    """One way of using a name."""

    name: str
    form: str
    uses: int
    repositories: int

    @property
    def words(self) -> str:
        """The use, written with portagpu."""
        if self.form == "device":
            return f"torch.zeros(2, device=pg.{self.name}())"
        if self.form == "with":
            return f"with pg.{self.name}(0): assert torch.ones(1).device == pg.device(0), 'other'"
        if self.form == "type":
            return f"isinstance(None, pg.{self.name})"
        if self.form == "reference":
            return f"pg.{self.name}"
        return _WORDS.get(self.name, f"pg.{self.name}()")


def load_uses() -> list[Use]:
    """The table."""
    table = tomllib.loads((_HERE / "torch_cuda_uses.toml").read_text(encoding="utf-8"))
    return [Use(*row) for row in table["uses"]]


def is_covered(use: Use) -> bool:
    """Whether portagpu has the name, or the guide names it in the left column of a row."""
    import portagpu as pg

    found: Any = pg
    for part in use.name.split("."):
        found = getattr(found, part, None)
    rows = "\n".join(re.findall(r"^\| (.*?) \| ", _GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
    return found is not None or re.search(rf"\b{re.escape(use.name)}\b", rows) is not None


def is_literal(use: Use) -> str:
    """ "runs" or "refused" where the renamed use is all there is to write; else what it raises."""
    import torch

    import portagpu as pg

    if use.name == "device" and use.form == "with":
        return "is torch.device's block: device_index"
    try:
        exec(use.words, {"torch": torch, "pg": pg})
    except pg.Unsupported:
        return "refused"
    except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "runs"


def shares() -> tuple[float, float, float]:
    """The shares of all uses that are covered, literal, and refused on this device."""
    uses = load_uses()
    answers = {use: is_literal(use) for use in uses}
    total = sum(use.uses for use in uses)

    def share(chosen: list[Use]) -> float:
        return sum(use.uses for use in chosen) / total

    return (
        share([use for use in uses if is_covered(use)]),
        share([use for use in uses if answers[use] in ("runs", "refused")]),
        share([use for use in uses if answers[use] == "refused"]),
    )


def main() -> int:
    """Print what is missing, and the shares."""
    uses = load_uses()
    for use in uses:
        answer = is_literal(use)
        if answer not in ("runs", "refused"):
            covered = "row" if is_covered(use) else "none"
            print(f"{use.uses:>4} {use.name:<28} {use.form:<10} {covered:<5} {answer}")
    covered, literal, refused = shares()
    print(f"{sum(use.uses for use in uses)} uses: {covered:.1%} covered, {literal:.1%} literal,")
    print(f"of which {refused:.1%} refused with Unsupported here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
