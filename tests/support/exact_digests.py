"""Writes ``matrix/screen/digests.toml``: ``python -m tests.support.exact_digests``.

Every result is judged first. What this machine's CPU does not compute is computed in integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

import portagpu
from portagpu.devices.precision import Support
from portagpu.train.exact.draws import Draws
from portagpu.train.exact.judge import digest
from portagpu.train.exact.probes import AREAS, PROBES, SCHEMA
from portagpu.train.exact.products import Summed
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.train.exact.probe import Probe

SEED: Final = 20260101
FILE: Final = ROOT / "matrix" / "screen" / "digests.toml"
HEAD: Final = f"""\
# What any device of any vendor has to give: the SHA-256 of the first result of each exact probe.
# Written by python -m tests.support.exact_digests
schema = "{SCHEMA}"
seed = {SEED}

[sha256]
"""


def published() -> Iterable[Probe]:
    """The probes that have a digest."""
    return (each for each in PROBES if each.area in AREAS)


def digest_of(probe: Probe, seed: int = SEED) -> str:
    """The digest of a judged result; of the exact one where this machine refuses the probe."""
    gpu = portagpu.backend("cpu")
    work = probe.make(gpu, Draws(seed), 1)
    support = gpu.precision.support(getattr(torch, probe.dtype))
    fp8 = probe.dtype.startswith("float8") and support is Support.EMULATED
    if fp8 or not probe.refuses(gpu):
        result = work.run()
        assert work.judge(result) is None, probe.name
        return digest(result)
    reference = work if isinstance(work, Summed) else work.reference
    rows = torch.arange(reference.of.a.shape[0])
    dtype = torch.int32 if probe.dtype == "int8" else torch.float32
    exact = reference.of.scaled(reference.of.exact(rows), rows, dtype)
    return digest(exact if work is reference else exact.to(work.dtype))


if __name__ == "__main__":
    lines = [f'"{each.name}" = "{digest_of(each)}"' for each in published()]
    FILE.write_text(HEAD + "\n".join(lines) + "\n", "utf-8")
