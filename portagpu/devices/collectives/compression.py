"""Gradients compressed to their largest elements, with error feedback, for DDP.

Each rank sends a part of its gradient, and keeps what it did not send for the next step (S. U.
Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018). Nothing is lost: at
any time, what a rank sent and what it keeps add up to the gradients that it had.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from portagpu.base.errors import CollectiveMismatch, Unsupported
from portagpu.devices.collectives.helpers import all_gather_single

_INDEX: Final = torch.int32


class TopK:
    """The state of :func:`top_k_hook` on one rank, for one model.

    What is kept belongs to a parameter and not to a bucket, because DDP makes other buckets after
    the first step. It needs the memory of one more gradient, in float32 for 16-bit gradients. It
    differs between the ranks: each saves and loads its own :meth:`state_dict`.

    :param model: the model, or its DistributedDataParallel.
    :param density: the share of each parameter's elements that is sent, above 0 and at most 1, and
        the same on every rank. At least one element of each parameter is sent.
    :param group: the process group of DDP; by default all ranks.
    :raises ValueError: for another density.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        density: float = 0.01,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if (
            isinstance(density, bool)
            or not isinstance(density, int | float)
            or not 0 < density <= 1
        ):
            raise ValueError(
                f"density is the share of elements to send, above 0 and at most 1, not {density!r}"
            )
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        self.density: Final = density
        self.group: Final = group
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._sizes = {name: each.numel() for name, each in model.named_parameters()}
        # id() stands for a parameter only while it lives
        self._model: Final = model
        self._kept: dict[str, torch.Tensor] = {}
        self._agreed = False

    def kept(self, parameter: torch.Tensor) -> torch.Tensor:
        """What was not sent yet of a parameter's gradient: flat, in the order of its memory."""
        name = self._name(parameter)
        if name not in self._kept:
            dtype = parameter.dtype if parameter.dtype.itemsize > 2 else torch.float32
            self._kept[name] = torch.zeros(parameter.numel(), dtype=dtype, device=parameter.device)
        return self._kept[name]

    def count(self, parameter: torch.Tensor) -> int:
        """How many elements of a parameter's gradient each rank sends."""
        return min(parameter.numel(), max(1, math.ceil(self.density * parameter.numel())))

    def clear(self) -> None:
        """Forget what was not sent: after a jump of the loss's scale or of the weights."""
        self._kept.clear()

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps, by the parameters' names."""
        return {"kept": {name: each.clone() for name, each in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict` of the same rank.

        Raises ValueError, and changes nothing, where it is of another model.
        """
        kept = state.get("kept") if isinstance(state, Mapping) else None
        if not isinstance(kept, Mapping) or not all(map(torch.is_tensor, kept.values())):
            raise ValueError("not a state_dict of TopK: it has no tensors in 'kept'")
        for name, each in kept.items():
            if name not in self._sizes:
                raise ValueError(f"the state has a parameter {name!r}, and the model has none")
            if each.numel() != self._sizes[name]:
                raise ValueError(
                    f"the state has {each.numel()} elements of {name!r}, and the model has "
                    f"{self._sizes[name]}"
                )
        owners = dict(self._model.named_parameters())
        self._kept.clear()
        for name, each in kept.items():
            self.kept(owners[name]).copy_(each)

    def _name(self, parameter: torch.Tensor) -> str:
        if (name := self._names.get(id(parameter))) is None:
            raise ValueError(
                "DDP reduces a parameter that is not of the model that TopK was given: give both "
                "the same model, after its last change"
            )
        return name

    def _agree(self, device: torch.device) -> None:
        """Compare the densities of the ranks once: other densities are other sizes."""
        if self._agreed:
            return
        bits = struct.unpack("q", struct.pack("d", self.density))[0]
        mine = torch.tensor([bits], dtype=torch.int64, device=device)
        everyone = mine.new_empty(dist.get_world_size(self.group))
        all_gather_single(everyone, mine, group=self.group)
        densities = [struct.unpack("d", struct.pack("q", each))[0] for each in everyone.tolist()]
        if len(set(densities)) > 1:
            raise CollectiveMismatch(
                f"the ranks give TopK different densities: {densities}, in the order of the ranks"
            )
        self._agreed = True


def top_k_hook(state: TopK, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the largest elements of every rank's gradients, for ``register_comm_hook``.

    Each rank adds what it kept to its gradient, sends the ``state.count`` elements of each
    parameter that are largest by magnitude, and keeps the rest. Of equal ones those come first that
    come first in memory. The sums are made in the order of the ranks, in float32 for 16-bit
    gradients, so that every rank gets the same bits.

    Of a parameter whose gradient is zero on every rank nothing is taken, and what is kept stays: no
    rank may have used it in this step (``find_unused_parameters``), and then DDP throws its average
    away.

    Each rank receives n - 1 times the elements that one sends, with 4 bytes for the place of each.
    That is less than ``all_reduce`` moves below a density of 1 / n for float32 and 2 / (3 n) for 16
    bits. The first step compares the densities, for which the host waits.

    NaN and infinities are the first to be sent, and are never kept: so a GradScaler sees them on
    every rank, and the step after is clean. With a GradScaler what is kept was multiplied by the
    scale of its step: call ``state.clear()`` where the scale changes.

    :param state: what this rank keeps between steps.
    :param bucket: the gradients that DDP hands over: dense, below 2^31 elements.
    :returns: a future of the averaged bucket, in its shape and dtype.
    :raises Unsupported: for sparse gradients and larger buckets.
    :raises CollectiveMismatch: where the ranks' densities differ.
    """
    whole = bucket.buffer()
    if whole.is_sparse:
        raise Unsupported("top_k_hook takes dense gradients: make the embedding not sparse")
    if whole.numel() > torch.iinfo(_INDEX).max:
        raise Unsupported("top_k_hook takes buckets below 2^31 elements: lower bucket_cap_mb")
    state._agree(whole.device)
    places, values, used, sent, offset = [], [], [], [], 0
    for parameter in bucket.parameters():
        # the bucket holds the gradient in the order of the parameter's memory
        gradient = whole[offset : offset + parameter.numel()]
        used.append(gradient.any())
        kept = state.kept(parameter)
        here, chosen = _take(gradient, kept, state.count(parameter))
        sent.append((kept, here, chosen))
        places.append((here + offset).to(_INDEX))
        values.append(chosen)
        offset += parameter.numel()
    place, value = torch.cat(places), torch.cat(values)
    place_bytes = place.numel() * place.itemsize
    parts = (place, value, torch.stack(used))
    mine = torch.cat([each.view(torch.uint8) for each in parts])
    ranks = dist.get_world_size(state.group)
    everyone = mine.new_empty(ranks * mine.numel())
    work = all_gather_single(everyone, mine, group=state.group, async_op=True)

    def average(_: object) -> torch.Tensor:
        total = torch.zeros_like(whole, dtype=_wide(whole.dtype))
        of_ranks = everyone.reshape(ranks, -1)
        by_any = of_ranks[:, -len(used) :].bool().any(0)
        counted = torch.cat(
            [flag.expand(len(here)) for flag, (_, here, _) in zip(by_any, sent, strict=True)]
        )
        for each in of_ranks:
            # a copy of each part begins where its dtype can begin
            at = each[:place_bytes].clone().view(_INDEX).long()
            given = each[place_bytes : -len(used)].clone().view(whole.dtype)
            total[at] += torch.where(counted, given, 0).to(total.dtype)
        for flag, (kept, here, chosen) in zip(by_any, sent, strict=True):
            kept[here] += torch.where(flag, 0, chosen).to(kept.dtype)
        return whole.copy_(total / ranks)

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(average)
    return future


# DDP compares the annotations, which are texts in this module
top_k_hook.__annotations__ = {
    "state": TopK,
    "bucket": GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize > 2 else torch.float32


def _take(
    gradient: torch.Tensor, kept: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(places, values) of what is sent; ``kept`` gets the rest, with what rounding left over."""
    if not count:
        return gradient.new_empty(0, dtype=torch.int64), gradient
    kept += gradient
    sizes = kept.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    least = sizes.topk(count).values[-1]
    above, equal = sizes > least, sizes == least
    # torch.topk promises no order among equal ones
    chosen = above | (equal & (equal.cumsum(0) <= count - above.sum()))
    places = chosen.nonzero().reshape(-1)
    values = kept[places].to(gradient.dtype)
    kept[places] -= values
    kept.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return places, values
