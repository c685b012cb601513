"""AMD's tuning back ends: torch's TunableOp over rocBLAS and hipBLASLt, and MIOpen's find.

No GPU has run this yet. Sources: torch/cuda/tunable.py (the file, its "Validator" lines, and that a
file of other versions is rejected); torch, aten/src/ATen/native/miopen/Conv_miopen.cpp
(``torch.backends.cudnn.benchmark`` makes MIOpen search); MIOpen documentation, "Find database" and
"Environment variables" (MIOPEN_USER_DB_PATH, ~/.config/miopen).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.devices.plugin_parts import Tuner, TunerState, files_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_USER_DATABASE: Final = "~/.config/miopen"


def validators_of(text: str) -> dict[str, str]:
    """The "Validator,NAME,VALUE" lines of a file of TunableOp."""
    rows = (line.split(",", 2) for line in text.splitlines() if line.startswith("Validator,"))
    return {row[1].strip(): row[2].strip() for row in rows if len(row) == 3}


def state_of_file(path: str, here: Sequence[Sequence[str]], on: bool) -> TunerState:
    """The state of TunableOp with that file, where ``here`` are the versions that run."""
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError:
        return TunerState(on, warm=False, valid=None, where=path, entries=0)
    entries = sum(1 for line in text.splitlines() if line and not line.startswith("Validator,"))
    kept = validators_of(text)
    differing = [name for name, value, *_ in here if kept.get(name) != value]
    remark = f"made with another {', '.join(differing)}, so torch rejects it" if differing else ""
    return TunerState(on, entries > 0, not differing, path, entries, remark)


def _tunableop_state() -> TunerState:
    from torch.cuda import tunable

    return state_of_file(tunable.get_filename(), tunable.get_validators(), tunable.is_enabled())


@contextmanager
def _tunableop(on: bool) -> Iterator[None]:
    from torch.cuda import tunable

    before, tuning = tunable.is_enabled(), tunable.tuning_is_enabled()
    tunable.enable(on)
    tunable.tuning_enable(on)
    try:
        yield
    finally:
        tunable.enable(before)
        tunable.tuning_enable(tuning)


def _miopen_state() -> TunerState:
    import torch

    where = os.environ.get("MIOPEN_USER_DB_PATH") or str(Path(_USER_DATABASE).expanduser())
    entries = files_below(where)
    remark = "its files have device and version in their names, and MIOpen reads those that fit"
    return TunerState(torch.backends.cudnn.benchmark, bool(entries), None, where, entries, remark)


@contextmanager
def _miopen(on: bool) -> Iterator[None]:
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


TUNERS: Final = (
    Tuner("tunableop", "product", _tunableop_state, _tunableop),
    Tuner("miopen-find", "convolution", _miopen_state, _miopen),
)
