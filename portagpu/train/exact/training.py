"""Silent corruption, looked for while a model trains."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import SilentCorruption
from portagpu.devices.registry import backend
from portagpu.train.exact.draws import Draws, mix

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    import torch.distributed as dist

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Probe

_WORD_BYTES: Final = 8
_ROW_WORDS: Final = 1024
_LOCAL_AREAS: Final = ("vectors", "integers", "reductions")
"""Areas of probes of one device that take milliseconds, their operands and judging included."""
_SHORT_PRODUCTS: Final = ("full", "odd")
"""Variants of products that do, too: every format has one."""


def parameter_digest(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """A digest of the bits of tensors: equal where all bits are equal.

    The sum of all 8-byte words, each times an odd random number, modulo 2**64. One changed word
    always changes it; several cancel with a probability of about 2**-32 or less. It takes one pass
    over memory.

    :param tensors: Of one device; of a sharded one (``DTensor``) this rank's shard.
    :returns: int64 of shape (), on the device.
    :raises ValueError: There are no tensors.
    """
    import torch

    total: torch.Tensor | None = None
    for number, each in enumerate(tensors):
        local: Any = each.to_local() if hasattr(each, "to_local") else each
        words = _words(local.detach())
        draws = Draws(number, words.device)
        rows = (words * draws.odd("words", (_ROW_WORDS,))).sum(1)
        found = (rows * draws.odd("rows", rows.shape)).sum()
        total = found if total is None else total + found
    if total is None:
        raise ValueError("a digest is of one tensor or more: give the parameters of a model")
    return total.to(torch.int64)


def _words(values: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as int64 of shape (rows, ``_ROW_WORDS``), with zeros at the end."""
    import torch

    raw = values.contiguous().reshape(-1).view(torch.uint8)
    missing = -raw.numel() % (_ROW_WORDS * _WORD_BYTES)
    if missing:
        raw = torch.nn.functional.pad(raw, (0, missing))
    return raw.view(torch.int64).reshape(-1, _ROW_WORDS)


class TrainingScreen:
    """Looks for silent corruption in a training loop: call :meth:`step` after each update.

    Every ``every``-th call runs one exact probe on this rank's device, another one each time, with
    new operands, and judges every element. With several ranks it also compares the digests of the
    parameters that all of them hold (:func:`parameter_digest`). All ranks learn what any found,
    and all raise.

    ::

        screen = portagpu.screen.TrainingScreen(model.parameters())
        for batch in loader:
            ...
            optimizer.step()
            screen.step()

    A probe finds a device that computes wrong now and then only by luck: ``portagpu screen`` looks
    longer.

    :param parameters: What every rank of ``group`` holds with the same bits: those of a model in
        DDP, or the shards that a replica of the same rank holds (HSDP). Empty: only probes run.
    :param every: Steps from one check to the next, 1 or more.
    :param group: The ranks that are compared, by default all; None of several processes cannot be.
        A process without ``torch.distributed`` runs probes alone.
    :param seed: Of the operands; the same on all ranks.
    :raises ValueError: ``every`` is below 1.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor] = (),
        *,
        every: int = 100,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is 1 or more steps, not {every}")
        self._parameters = list(parameters)
        self._every, self._group, self._seed = every, group, seed
        self._steps = 0
        self._gpu: Backend = backend()
        self._probes: list[Probe] | None = None

    def step(self) -> None:
        """Count a step, and check if it is the turn of this one.

        :raises SilentCorruption: A rank computed wrong, or ranks hold different parameters.
        """
        self._steps += 1
        if self._steps % self._every == 0:
            self.check()

    def check(self) -> None:
        """Check now; every rank of the group has to call it.

        :raises SilentCorruption: As :meth:`step`.
        """
        probe, wrong = self._run_probe()
        rows = self._exchange(wrong)
        _raise_for_probes(self._steps, probe, rows, wrong)
        if self._parameters and len(rows) > 1:
            _raise_for_parameters(self._steps, [row[-1] for row in rows])

    def _run_probe(self) -> tuple[Probe, Wrong | None]:
        if self._probes is None:
            from portagpu.train.exact.probes import PROBES

            self._probes = [
                each for each in PROBES if _is_short(each) and not each.refuses(self._gpu)
            ]
        turn = self._steps // self._every
        probe = self._probes[turn % len(self._probes)]
        work = probe.make(self._gpu, Draws(mix(self._seed + turn), self._gpu.device), 1)
        return probe, work.judge(work.run())

    def _exchange(self, wrong: Wrong | None) -> list[list[int]]:
        """By rank: how many elements were wrong, the digest of these, and of the parameters."""
        import torch
        import torch.distributed as dist

        digest = int(wrong.digest(), 16) >> 1 if wrong else 0
        ours = [wrong.count if wrong else 0, digest]
        if not (dist.is_available() and dist.is_initialized()):
            return [ours]
        if self._parameters:
            ours.append(int(parameter_digest(self._parameters)))
        sent = torch.tensor(ours, dtype=torch.int64, device=self._gpu.device)
        found = torch.empty(
            dist.get_world_size(self._group), len(ours), dtype=torch.int64, device=sent.device
        )
        dist.all_gather(list(found), sent, group=self._group)
        rows: list[list[int]] = found.tolist()
        return rows


def _is_short(probe: Probe) -> bool:
    variant = probe.name.partition("[")[2].rstrip("]")
    return probe.area in _LOCAL_AREAS or (probe.area == "products" and variant in _SHORT_PRODUCTS)


def _raise_for_probes(
    step: int, probe: Probe, rows: Sequence[Sequence[int]], wrong: Wrong | None
) -> None:
    ranks = [rank for rank, row in enumerate(rows) if row[0]]
    if not ranks:
        return
    what = (
        f"step {step}: {_named(ranks)} computed {rows[ranks[0]][0]} wrong results of {probe.name}"
    )
    if len(rows) == 1:
        why = "device or software is not separated: run `portagpu screen` here and on a peer"
    elif len(ranks) == len(rows) and len({row[1] for row in rows}) == 1:
        why = "all ranks are wrong in the same bits, so it is the software"
    else:
        why = "its peers are right" if len(ranks) < len(rows) else "each in other bits"
        why += ": start no job on its node until `portagpu screen` has passed there"
    raise SilentCorruption(f"{what}; {why}", tuple(ranks))


def _raise_for_parameters(step: int, digests: Sequence[int]) -> None:
    holders: dict[int, list[int]] = defaultdict(list)
    for rank, digest in enumerate(digests):
        holders[digest].append(rank)
    if len(holders) == 1:
        return
    most = max(map(len, holders.values()))
    agreed = [ranks for ranks in holders.values() if len(ranks) == most]
    if len(agreed) == 1:
        odd = tuple(rank for rank in range(len(digests)) if rank not in agreed[0])
        raise SilentCorruption(
            f"step {step}: the parameters of {_named(odd)} differ from those of the other "
            f"{most} ranks: continue from a checkpoint before step {step} without its device",
            odd,
        )
    raise SilentCorruption(
        f"step {step}: ranks hold different parameters, {len(holders)} kinds of "
        f"{len(digests)}, and none is of a majority: continue from a checkpoint",
        tuple(range(len(digests))),
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
