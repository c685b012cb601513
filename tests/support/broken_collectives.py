"""A backend whose collectives are broken, as a module that a test installs.

Each fault is in one call of ``torch.distributed``, or in one dtype or op of it, so that the good
ones next to it still pass. ``FAULTS`` names them with the case that catches each and a part of its
sentence. Random programs report one difference, so their faults are installed one at a time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from portagpu_cpu.plugin import CpuPlugin

SEARCH = "collectives/random-programs[n4]"
FAULTS = {
    "returns early from what is asynchronous": (
        "collectives/asynchronous[count1]",
        "asynchronous sums: rank 0 got",
    ),
    "is off by one rank in a sum of shares": (
        "collectives/tuned-sum[shares]",
        "reduce_scatter+all_gather: rank 0 got",
    ),
    "has a barrier that holds nobody": ("collectives/barrier[n2]", "left the barrier"),
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
    "sums to zero on four ranks, the same each time": (
        "collectives/sums-repeat",
        "a repeated sum: element 5 is 0 instead of",
    ),
    "repeats zeros at every size": (
        "collectives/sums-repeat-at-every-size[count1024]",
        "one of 1024 sums: element 5 is 0 instead of",
    ),
    "sums to zero where terms cancel": (
        "collectives/cancellation",
        "1e8 + 1001 - 1e8 + 1001 is",
    ),
    "destroys no group": (
        "collectives/init-and-shutdown",
        "a process group is there already",
    ),
    "gives a rank the gradients of another's shards": (
        "parallel/equals-one-process[fsdp2]",
        "rank 0: losses of fsdp2: element 1 is",
    ),
    "gathers zeros for numbers on two ranks": (
        "collectives/helper-uneven-rows-are-compared",
        "rows that differ: rank 0 got",
    ),
    "gathers zeros for bytes that are asynchronous": (
        "collectives/helper-top-k",
        "compressed gradients: rank 0 got",
    ),
    "draws random numbers in a barrier": (
        "rng/ranks-are-independent",
        "rank 0 drew other numbers after its seed",
    ),
    "sums instead of averaging": (SEARCH, "which is the SUM"),
    "is off by one rank in reduce_scatter": (SEARCH, "reduce_scatter"),
    "multiplies nothing": (SEARCH, "nothing was written"),
    "saturates integers": (SEARCH, "held at the end of the format instead of wrapping around"),
    "rounds sums of bfloat16 to eight bits": (SEARCH, "bfloat16 on ranks"),
    "flushes subnormal numbers": (SEARCH, "got 0 at element"),
    "sums a copy of strided tensors": (SEARCH, "nothing was written"),
    "does nothing where it must refuse": (SEARCH, "took BAND of floats without an error"),
    "broadcasts from rank 0, whoever is asked": (SEARCH, "broadcast"),
    "gathers in reverse": (SEARCH, "in output 0, not"),
    "scatters to the next rank": (SEARCH, "in the output, not"),
    "gathers another order at the root": (SEARCH, "in output 0, not"),
    "reduces nothing": (SEARCH, "nothing was written"),
    "exchanges nothing": (SEARCH, "all_to_all"),
    "agrees on zeros": (SEARCH, "got 0 at element"),
    "gathers bytes in another order": (SEARCH, "all_gather"),
    "takes no maximum of int32": (SEARCH, " MAX of "),
    "refuses a reduce op that is claimed": (SEARCH, "raised RuntimeError: no AVG of float16"),
    "rounds sums of float32 to eight bits": (SEARCH, "float32 on ranks"),
    "broadcasts bytes from rank 0": (SEARCH, "broadcast"),
}
"""Those that random programs find are installed one at a time, by :func:`alone`."""
GOOD = ("collectives/all-reduce-alone[SUM]", "collectives/all-reduce-alone[MAX]")
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

    names = ("all_reduce", "reduce_scatter_tensor", "batch_isend_irecv", "all_gather_into_tensor")
    good = {name: getattr(dist, name) for name in names}

    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if dist.get_world_size() == 4 and tensor.dtype == torch.float32 and not async_op:
            return tensor.zero_()
        work = good["all_reduce"](tensor, op, group, async_op)
        return Early() if async_op else work

    def reduce_scatter_tensor(output: Any, input: Any, *given: Any, **options: Any) -> Any:  # noqa: A002
        whole = input.roll(-output.numel())
        return good["reduce_scatter_tensor"](output, whole, *given, **options)

    def all_gather_into_tensor(
        output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        work = good["all_gather_into_tensor"](output_tensor, input_tensor, group, async_op)
        if async_op:
            work.wait()
            output_tensor.zero_()
        elif dist.get_world_size() == 2 and input_tensor.dtype == torch.int64:
            output_tensor.zero_()
        return work

    def batch_isend_irecv(ops: list[Any]) -> Any:
        receives = iter([each for each in ops if each.op == dist.irecv][::-1])
        turned = [next(receives) if each.op == dist.irecv else each for each in ops]
        return good["batch_isend_irecv"](turned)

    def barrier(*arguments: Any, **options: Any) -> None:
        torch.rand(1)

    for each in (all_reduce, reduce_scatter_tensor, batch_isend_irecv, all_gather_into_tensor):
        install(dist, each.__name__, each)
    dist.destroy_process_group = lambda group=None: None
    dist.barrier = barrier
    dist.ProcessGroup.monitored_barrier = dist.barrier


RENAMED = {
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
"""The names since torch 2.13."""


def install(dist: Any, name: str, function: Any) -> None:
    """Put ``function`` in the place of ``torch.distributed``'s, under both its names."""
    for each in (name, RENAMED.get(name, name)):
        if hasattr(dist, each):
            setattr(dist, each, function)


class Done:
    """Work that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True


def alone(dist: Any, fault: str) -> None:
    """Break ``torch.distributed`` in this process by one of the faults of SEARCH."""
    import torch

    op_of = dist.ReduceOp

    def averages(call: Any, tensor: Any, op: Any) -> None:
        call(tensor, op_of.SUM if op == op_of.AVG else op)

    def product(call: Any, tensor: Any, op: Any) -> None:
        if op != op_of.PRODUCT:
            call(tensor, op)

    def saturates(call: Any, tensor: Any, op: Any) -> None:
        whole = tensor.int() if tensor.dtype == torch.int8 else tensor
        call(whole, op)
        if whole is not tensor:
            tensor.copy_(whole.clamp(-128, 127))

    def rounds(call: Any, tensor: Any, op: Any) -> None:
        call(tensor, op)
        if tensor.dtype == torch.bfloat16:
            tensor.copy_(tensor.to(torch.float8_e5m2))

    def rounds_float32(call: Any, tensor: Any, op: Any) -> None:
        call(tensor, op)
        if tensor.dtype == torch.float32 and op == op_of.SUM:
            tensor.copy_(tensor.bfloat16())

    def flushes(call: Any, tensor: Any, op: Any) -> None:
        call(tensor, op)
        if tensor.dtype == torch.float32:
            tensor.masked_fill_(tensor.abs() < 2.0**-126, 0.0)

    def copies(call: Any, tensor: Any, op: Any) -> None:
        call(tensor.contiguous(), op)

    def refuses_nothing(call: Any, tensor: Any, op: Any) -> None:
        if op != op_of.BAND or not tensor.is_floating_point():
            call(tensor, op)

    def zeros(call: Any, tensor: Any, op: Any) -> None:
        call(tensor, op)
        if tensor.dtype == torch.float32:
            tensor.zero_()

    def no_maximum(call: Any, tensor: Any, op: Any) -> None:
        if op != op_of.MAX or tensor.dtype != torch.int32:
            call(tensor, op)

    def refuses(call: Any, tensor: Any, op: Any) -> None:
        if op == op_of.AVG and tensor.dtype == torch.float16:
            raise RuntimeError("no AVG of float16")
        call(tensor, op)

    def broadcast(good: Any, tensor: Any, *given: Any, **options: Any) -> Any:
        if fault == "broadcasts bytes from rank 0" and tensor.dtype != torch.uint8:
            return good(tensor, *given, **options)
        others = {name: options[name] for name in ("group", "async_op") if name in options}
        others |= {"group": given[1]} if len(given) > 1 else {}
        return good(tensor, group_src=0, **others)

    def scatter_sums(good: Any, output: Any, whole: Any, **options: Any) -> Any:
        return good(output, whole.roll(-len(output), 0), **options)

    def gather_reversed(good: Any, parts: Any, tensor: Any, **options: Any) -> Any:
        return good(parts[::-1], tensor, **options)

    def scatter(good: Any, tensor: Any, parts: Any = None, *given: Any, **options: Any) -> Any:
        return good(tensor, parts and parts[1:] + parts[:1], *given, **options)

    def gather(good: Any, tensor: Any, parts: Any = None, *given: Any, **options: Any) -> Any:
        return good(tensor, parts and parts[::-1], *given, **options)

    def reduce(good: Any, *given: Any, async_op: bool = False, **options: Any) -> Any:
        return Done() if async_op else None

    def exchange(good: Any, output: Any, whole: Any, *splits: Any, **options: Any) -> Any:
        if splits or output.shape != whole.shape:
            return good(output, whole, *splits, **options)
        output.copy_(whole)
        return Done() if options.get("async_op") else None

    def gather_bytes(good: Any, output: Any, tensor: Any, *given: Any, **options: Any) -> Any:
        work = good(output, tensor, *given, **options)
        if tensor.dtype == torch.uint8 and work is None:
            output.copy_(output.roll(len(tensor), 0))
        return work

    sums = {
        "sums instead of averaging": averages,
        "multiplies nothing": product,
        "saturates integers": saturates,
        "rounds sums of bfloat16 to eight bits": rounds,
        "rounds sums of float32 to eight bits": rounds_float32,
        "flushes subnormal numbers": flushes,
        "sums a copy of strided tensors": copies,
        "does nothing where it must refuse": refuses_nothing,
        "agrees on zeros": zeros,
        "takes no maximum of int32": no_maximum,
        "refuses a reduce op that is claimed": refuses,
    }
    calls = {
        "broadcasts from rank 0, whoever is asked": ("broadcast", broadcast),
        "broadcasts bytes from rank 0": ("broadcast", broadcast),
        "is off by one rank in reduce_scatter": ("reduce_scatter_tensor", scatter_sums),
        "gathers in reverse": ("all_gather", gather_reversed),
        "scatters to the next rank": ("scatter", scatter),
        "gathers another order at the root": ("gather", gather),
        "reduces nothing": ("reduce", reduce),
        "exchanges nothing": ("all_to_all_single", exchange),
        "gathers bytes in another order": ("all_gather_into_tensor", gather_bytes),
    }
    if fault in calls:
        name, function = calls[fault]
        install(dist, name, partial(function, getattr(dist, name)))
        return
    good = dist.all_reduce

    def all_reduce(
        tensor: Any, op: Any = op_of.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        sums[fault](partial(good, group=group), tensor, op)
        return Done() if async_op else None

    dist.all_reduce = all_reduce


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
