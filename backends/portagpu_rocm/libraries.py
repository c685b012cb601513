"""What AMD's libraries add: TunableOp and MIOpen's find, and hipFile. No GPU has run this yet.

TunableOp, over rocBLAS and hipBLASLt: torch/cuda/tunable.py (the file, its "Validator" lines, and
that a file of other versions is rejected). MIOpen: torch,
aten/src/ATen/native/miopen/Conv_miopen.cpp (``torch.backends.cudnn.benchmark`` makes MIOpen
search); MIOpen documentation, "Find database" and "Environment variables" (MIOPEN_USER_DB_PATH,
~/.config/miopen).

hipFile copies through the host's memory where its fast path cannot be taken, unless
``HIPFILE_ALLOW_COMPAT_MODE`` is false: then such a transfer fails (ROCm documentation, "hipFile
environment variables" and "hipFile fastpath and fallback backends"). It comes with ROCm 7.14 and
newer, takes the fast path on ext4 (``data=ordered``) and xfs, and has counters only through
an interface of C and ``ais-stats``.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.devices.plugin_parts import DirectStorage, Tuner, TunerState, files_below
from portagpu_torch_gpu.libraries import GdsFile, searched

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


TUNERS: Final = (
    Tuner("tunableop", "product", _tunableop_state, _tunableop),
    Tuner("miopen-find", "convolution", _miopen_state, searched),
)


STORAGE: Final = DirectStorage(
    library="hipFile",
    open=partial(GdsFile, "hipFile"),
    proof="HIPFILE_ALLOW_COMPAT_MODE=false has hipFile fail where it would copy through the host",
    environment={"HIPFILE_ALLOW_COMPAT_MODE": "false"},
)
