"""A backend whose collectives are broken, as a module that a test installs.

Each fault is in one call of ``torch.distributed``, or in one dtype or op of it, so that the good
ones beside it still pass. ``FAULTS`` names them with the case that catches each and a part of its
sentence.
"""

from __future__ import annotations

from typing import Any

from portagpu_cpu import CpuPlugin

FAULTS = {
    "sums instead of averaging": (
        "collectives/all-reduce-op[AVG-n2]",
        "all_reduce AVG: rank 0 got",
    ),
    "returns early from what is asynchronous": (
        "collectives/asynchronous[count1]",
        "asynchronous sums: rank 0 got",
    ),
    "is off by one rank in reduce_scatter": (
        "collectives/reduce-scatter[n2]",
        "reduce_scatter_tensor: rank 0 got",
    ),
    "is off by one rank in a sum of shares": (
        "collectives/tuned-sum[shares]",
        "reduce_scatter+all_gather: rank 0 got",
    ),
    "has a barrier that holds nobody": ("collectives/barrier[n2]", "left the barrier"),
    "multiplies nothing": (
        "collectives/all-reduce-op[PRODUCT-n2]",
        "all_reduce PRODUCT: rank 0 got",
    ),
    "saturates integers": ("collectives/integers-wrap", "in int8: rank 0 got [127"),
    "rounds sums of bfloat16 to eight bits": (
        "collectives/random-sum-is-bounded[bfloat16-n2]",
        "times the bound",
    ),
    "flushes subnormal numbers": ("collectives/special-values", "subnormal numbers add up to 0.0"),
    "sums a copy of strided tensors": (
        "collectives/strided-all-reduce",
        "a sum of transposed tensors: rank 0 got",
    ),
    "does nothing where it must refuse": (
        "collectives/bitwise-ops-on-floats[BAND]",
        "did not refuse BAND of floats",
    ),
    "broadcasts from rank 0, whoever is asked": (
        "collectives/broadcast[root1]",
        "a broadcast from 1: rank 0 got",
    ),
    "gathers in reverse": ("collectives/all-gather[n2]", "all_gather: rank 0 got"),
    "scatters to the next rank": ("collectives/scatter[root0]", "a scatter from 0: rank 0 got"),
    "gathers another order at the root": ("collectives/gather[root0]", "a gather at 0: rank 0 got"),
    "reduces nothing": ("collectives/reduce[root0]", "rank 0 got"),
    "exchanges nothing": ("collectives/all-to-all[single-n2]", "all_to_all: rank 0 got"),
    "delivers messages in reverse": (
        "collectives/messages-keep-order",
        "twenty messages: rank 0 got",
    ),
    "ends a wait at once, whatever its limit": (
        "failures/killed-rank-ends-the-collective",
        "finished an all-reduce without rank 1",
    ),
    "passes a monitored barrier": (
        "failures/monitored-barrier-names-the-rank[late1]",
        "passed a barrier",
    ),
    "agrees on zeros on four ranks": (
        "collectives/ranks-agree[float32]",
        "the sum of float32 that all have: ",
    ),
    "sums to zero on four ranks, the same each time": (
        "collectives/sums-repeat",
        "a repeated sum: ",
    ),
    "repeats zeros at every size": (
        "collectives/sums-repeat-at-every-size[count1024]",
        "one of 1024 sums: ",
    ),
    "sums to zero where terms cancel": (
        "collectives/cancellation",
        "1e8 + 1001 - 1e8 + 1001 is",
    ),
    "destroys no group": (
        "collectives/init-and-shutdown",
        "a process group is there already",
    ),
    "gathers bytes in another order": (
        "collectives/helper-uneven-rows[float32-n3]",
        "gathered rows of float32: rank 0 got",
    ),
    "gathers zeros for numbers on two ranks": (
        "collectives/helper-uneven-rows-are-compared",
        "rows that differ: rank 0 got",
    ),
    "takes no maximum of int32": (
        "collectives/helper-nan-guard[MAX-float32]",
        "MAX with NaN in float32: rank 0 got",
    ),
    "rounds sums of float32 to eight bits on three ranks": (
        "collectives/helper-wider-sum[float16]",
        "a wider sum of float16: rank 0 got",
    ),
    "broadcasts bytes from rank 0": (
        "collectives/helper-bytes[broadcast-float8_e4m3fn]",
        "broadcast of the bytes of float8_e4m3fn: rank 0 got",
    ),
    "gathers zeros for bytes that are asynchronous": (
        "collectives/helper-top-k",
        "compressed gradients: rank 0 got",
    ),
}
GOOD = ("collectives/all-reduce-op[SUM-n2]", "collectives/all-reduce-op[MAX-n2]")
"""Cases that this backend passes."""


class Early:
    """Work that says it was waited for, and was not."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return False


def break_collectives(dist: Any) -> None:
    """Break ``torch.distributed`` in this process."""
    import torch

    op_of = dist.ReduceOp
    good = {
        name: getattr(dist, name)
        for name in (
            *(
                "all_reduce",
                "reduce_scatter_tensor",
                "broadcast",
                "all_gather",
                "scatter",
                "gather",
            ),
            *("batch_isend_irecv", "all_gather_into_tensor"),
        )
    }

    def all_reduce(
        tensor: Any, op: Any = op_of.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if op == op_of.PRODUCT or (op == op_of.BAND and tensor.is_floating_point()):
            return None
        if op == op_of.MAX and tensor.dtype == torch.int32:
            return None
        if dist.get_world_size() == 4 and tensor.dtype == torch.float32 and not async_op:
            return tensor.zero_()
        whole = tensor
        if tensor.dtype == torch.int8:
            whole = tensor.int()
        elif not tensor.is_contiguous():
            whole = tensor.contiguous()
        work = good["all_reduce"](whole, op_of.SUM if op == op_of.AVG else op, group, async_op)
        if tensor.dtype == torch.int8:
            tensor.copy_(whole.clamp(-128, 127))
        elif dist.get_world_size() == 3 and op == op_of.SUM and tensor.dtype == torch.float32:
            tensor.copy_(tensor.bfloat16())
        elif tensor.dtype == torch.bfloat16:
            tensor.copy_(tensor.to(torch.float8_e5m2))
        elif tensor.dtype == torch.float32 and tensor.is_contiguous() and not async_op:
            tensor[tensor.abs() < 2.0**-126] *= 0.0
        return Early() if async_op else work

    def reduce_scatter_tensor(output: Any, whole: Any, **options: Any) -> Any:
        return good["reduce_scatter_tensor"](output, whole.roll(-output.numel()), **options)

    def all_gather(parts: list[Any], tensor: Any, **options: Any) -> Any:
        return good["all_gather"](parts[::-1], tensor, **options)

    def all_gather_into_tensor(
        output: Any, tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        work = good["all_gather_into_tensor"](output, tensor, group, async_op)
        if async_op:
            work.wait()
            output.zero_()
        elif tensor.dtype == torch.uint8:
            output.copy_(output.roll(tensor.numel()))
        elif dist.get_world_size() == 2 and tensor.dtype == torch.int64:
            output.zero_()
        return work

    def broadcast(tensor: Any, src: int = 0, *arguments: Any, **options: Any) -> Any:
        return good["broadcast"](tensor, 0 * src, *arguments, **options)

    def scatter(tensor: Any, parts: list[Any] | None = None, src: int = 0) -> Any:
        return good["scatter"](tensor, parts and parts[1:] + parts[:1], src=src)

    def gather(tensor: Any, parts: list[Any] | None = None, dst: int = 0) -> Any:
        return good["gather"](tensor, parts and parts[::-1], dst=dst)

    def batch_isend_irecv(ops: list[Any]) -> Any:
        receives = iter([each for each in ops if each.op == dist.irecv][::-1])
        turned = [next(receives) if each.op == dist.irecv else each for each in ops]
        return good["batch_isend_irecv"](turned)

    broken = (
        *(all_reduce, reduce_scatter_tensor, all_gather, broadcast, scatter, gather),
        *(batch_isend_irecv, all_gather_into_tensor),
    )
    for function in broken:
        setattr(dist, function.__name__, function)
    # the names since torch 2.13
    for name, function in (
        ("all_gather_single", all_gather_into_tensor),
        ("reduce_scatter_single", reduce_scatter_tensor),
    ):
        if hasattr(dist, name):
            setattr(dist, name, function)
    dist.destroy_process_group = lambda group=None: None
    dist.barrier = dist.reduce = lambda *arguments, **options: None
    dist.ProcessGroup.monitored_barrier = dist.barrier
    dist.all_to_all_single = lambda output, whole, *splits, **options: output.copy_(whole)


class Broken(CpuPlugin):
    """The CPU with broken collectives in every rank."""

    name = "broken"
    contract = (1, 0)

    def open(self, index: int) -> Any:
        import torch.distributed as dist

        from portagpu_cpu.backend import CpuBackend

        class Faulty(CpuBackend):
            __slots__ = ()

            def activate(self) -> None:
                super().activate()
                break_collectives(dist)

        handle = Faulty(self, index)
        handle.name = "broken"
        return handle


PLUGIN = Broken()
