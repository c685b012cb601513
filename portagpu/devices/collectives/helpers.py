"""Collectives that do the same with every library and version of torch, where their own differ.

They call only what Gloo, NCCL and RCCL all have, on tensors of dtypes that all of them know. Every
rank of ``group`` (default: all ranks) makes the same call, as with ``torch.distributed``. They
return when the result is there for the work that follows on the current stream, and follow no
gradients. ``n`` is the number of ranks below.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.base.errors import CollectiveError, CollectiveMismatch, Unsupported
from portagpu.devices.oom import is_oom

if TYPE_CHECKING:
    from collections.abc import Sequence


def all_gather_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """``all_gather_single``, which is ``all_gather_into_tensor`` before torch 2.13."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(output, input, group=group, async_op=async_op)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """``reduce_scatter_single``, which is ``reduce_scatter_tensor`` before torch 2.13."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, input, op=op, group=group, async_op=async_op)


_DTYPES: Final = sorted(
    {each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str
)
_MAX_DIMS: Final = 62
_ORDERED: Final = {
    torch.float16: torch.int32,
    torch.bfloat16: torch.int32,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""The integers that stand for a float's order; 16 bits are widened, as no library has int16."""
_WIDER: Final = {torch.float32: torch.float64}
_WIDENED_OPS: Final = ("SUM", "AVG", "PRODUCT")


@torch.no_grad()
def all_gather_uneven(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]:
    """The tensors of all ranks, in their order, which may have different numbers of rows.

    ``torch.distributed.all_gather`` takes such tensors with NCCL and RCCL, and raises with Gloo
    (pytorch/pytorch#156627). Each rank sends 512 bytes that say what it has, and then n - 1 times
    the bytes of the tensor with the most rows: shorter ones are padded. The host waits for the 512
    bytes.

    :param tensor: shape (rows, ...), any dtype; ``rows`` may differ between the ranks and be 0.
    :param group: the process group; by default all ranks.
    :returns: one tensor for each rank, with its rows, in the dtype of ``tensor``. They share one
        buffer.
    :raises CollectiveMismatch: on every rank, before any row is sent, where a tensor has no first
        dimension, or dtypes or the other dimensions differ.
    """
    n = _size("all_gather_uneven", group, tensor)
    stated = torch.tensor(_header(tensor), dtype=torch.int64, device=tensor.device)
    everyone = torch.empty(n * len(stated), dtype=torch.int64, device=tensor.device)
    all_gather_single(everyone, stated, group=group)
    headers: list[list[int]] = everyone.reshape(n, -1).tolist()
    _check_headers(headers, group)
    rows = [each[2] for each in headers]
    row_bytes = tensor.dtype.itemsize * math.prod(tensor.shape[1:])
    # as bytes, because not every dtype can be filled or copied in part
    padded = torch.zeros(max(rows) * row_bytes, dtype=torch.uint8, device=tensor.device)
    if not len(padded):
        return [tensor.new_empty(count, *tensor.shape[1:]) for count in rows]
    padded[: len(tensor) * row_bytes] = _flat_bytes(_plain(tensor))
    whole = torch.empty(n * len(padded), dtype=torch.uint8, device=tensor.device)
    all_gather_single(whole, padded, group=group)
    return [
        part[: count * row_bytes].view(tensor.dtype).reshape(count, *tensor.shape[1:])
        for part, count in zip(whole.reshape(n, -1), rows, strict=True)
    ]


def _header(tensor: torch.Tensor) -> list[int]:
    """[dtype, number of dimensions, dimension ...], always of one length."""
    dims = list(tensor.shape[:_MAX_DIMS])
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *dims, *[0] * (_MAX_DIMS - len(dims))]


def _check_headers(headers: Sequence[Sequence[int]], group: dist.ProcessGroup | None) -> None:
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    for rank, each in zip(ranks, headers, strict=True):
        if not 1 <= each[1] <= _MAX_DIMS:
            raise CollectiveMismatch(
                f"all_gather_uneven: rank {rank} has {_words(each)}: give tensors of 1 to "
                f"{_MAX_DIMS} dimensions, of which the first may differ"
            )
    kinds = [(*each[:2], *each[3:]) for each in headers]
    usual = max(kinds, key=kinds.count)
    for rank, each, kind in zip(ranks, headers, kinds, strict=True):
        if kind != usual:
            other = kinds.index(usual)
            raise CollectiveMismatch(
                f"all_gather_uneven: rank {rank} has {_words(each)}, and rank {ranks[other]} has "
                f"{_words(headers[other])}: only the first dimension may differ"
            )


def _words(header: Sequence[int]) -> str:
    dtype, dims, *shape = header
    return f"{str(_DTYPES[dtype]).removeprefix('torch.')}{list(shape[:dims])}"


@torch.no_grad()
def all_reduce_with_nan(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.MAX,
    group: dist.ProcessGroup | None = None,
) -> None:
    """The greatest (MAX) or least (MIN) number of all ranks, in place: NaN where any rank has NaN.

    The libraries' own MAX and MIN lose NaN: NCCL and RCCL take ``fmaxf`` (NCCL
    ``src/device/reduce_kernel.h``), which drops it, and Gloo ``std::max`` (``gloo/math.h``), which
    keeps or drops it by the order of the ranks. Here the result has the same bits with all of them:
    -0.0 is below 0.0, infinities count as numbers, and every NaN is the quiet one of torch.

    float32 and float64 are reduced as integers of the same size, whose order is that of the
    numbers: the same bytes as without the guard. float16 and bfloat16 are widened first, which is
    twice the bytes. It needs memory for one copy. Integers and booleans are the library's own
    all_reduce.

    :param tensor: of any shape; it gets the result.
    :param op: MAX or MIN of ``torch.distributed.ReduceOp``.
    :param group: the process group; by default all ranks.
    :raises ValueError: for another op, or a dtype without an order that all libraries know.
    """
    _size("all_reduce_with_nan", group, tensor)
    if op not in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        raise ValueError(f"all_reduce_with_nan takes MAX and MIN, not {_op_name(op)}")
    if tensor.is_complex():
        raise ValueError("complex numbers have no order, and no MAX or MIN")
    if not tensor.is_floating_point():
        # Gloo reduces the wrong elements of a strided tensor
        plain = tensor.contiguous()
        dist.all_reduce(plain, op, group)
        if plain is not tensor:
            tensor.copy_(plain)
        return
    whole = _ORDERED.get(tensor.dtype)
    if whole is None:
        raise ValueError(
            f"no library's {_op_name(op)} is for {_dtype_name(tensor)}: widen it first "
            "(tensor.float()), and cast the result back"
        )
    wide = tensor if tensor.dtype.itemsize == whole.itemsize else tensor.float()
    bits = wide.contiguous().view(whole)
    # negative numbers have the opposite order of their bits
    keys = _turned(bits)
    limits = torch.iinfo(whole)
    mark = limits.max if op == dist.ReduceOp.MAX else limits.min
    keys.masked_fill_(wide.isnan(), mark)
    dist.all_reduce(keys, op, group)
    tensor.copy_(_turned(keys).view(wide.dtype))
    # torch's casts make several kinds of NaN
    tensor.masked_fill_(keys == mark, float("nan"))


def _turned(bits: torch.Tensor) -> torch.Tensor:
    """All bits but the sign turned over where the sign is set; it undoes itself."""
    info = torch.iinfo(bits.dtype)
    return torch.where(bits < 0, bits ^ info.max, bits)


@torch.no_grad()
def all_reduce_wider(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """The SUM, AVG or PRODUCT of all ranks, in place, worked out in a wider dtype and rounded once.

    float16, bfloat16 and the 8-bit floats are reduced in float32, and float32 in float64. Every
    rank gets the same bits. A library rounds after each addition, and which it adds first differs
    among them. AVG is the sum divided by n.

    It sends twice the bytes of ``all_reduce`` (four times for 8-bit floats), and needs memory for
    one copy in the wider dtype. A result beyond the dtype's range becomes what torch's cast makes
    of it: an infinity, NaN, or the largest number for some 8-bit formats.

    :param tensor: of any shape, in a floating-point dtype of 8 to 32 bits; it gets the result.
    :param op: SUM, AVG or PRODUCT of ``torch.distributed.ReduceOp``.
    :param group: the process group; by default all ranks.
    :raises Unsupported: for float32 on a device without float64.
    :raises ValueError: for another op or dtype.
    """
    _check_dense("all_reduce_wider", tensor)
    name = _op_name(op)
    if name not in _WIDENED_OPS:
        raise ValueError(
            f"all_reduce_wider takes SUM, AVG and PRODUCT, not {name}: what does not round needs "
            "no wider dtype"
        )
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        raise ValueError(
            f"all_reduce_wider has no wider dtype for {_dtype_name(tensor)}: use all_reduce"
        )
    wide = _widened(tensor, _WIDER.get(tensor.dtype, torch.float32))
    n = _size("all_reduce_wider", group)
    dist.all_reduce(wide, dist.ReduceOp.SUM if name == "AVG" else op, group)
    if name == "AVG":
        wide /= n
    tensor.copy_(wide)


def _widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    try:
        return tensor.to(dtype, memory_format=torch.contiguous_format)
    except (TypeError, RuntimeError) as error:
        if is_oom(error):
            raise
        raise Unsupported(
            f"{tensor.device.type} devices have no {str(dtype).removeprefix('torch.')}, in which "
            f"{_dtype_name(tensor)} would be reduced: use all_reduce, or reduce on the CPU"
        ) from error


@torch.no_grad()
def broadcast_bytes(
    tensor: torch.Tensor, src: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """As :func:`torch.distributed.broadcast`, for every dtype: its bytes are moved.

    Gloo moves no 8-bit floats, int16, uint16 and uint32. NCCL and RCCL have no int16 and uint16,
    and 8-bit floats of some versions and formats only (``ncclDataType_t``). No bit is changed, also
    of NaN. A tensor that is not contiguous is copied.

    :param tensor: of any shape. The ranks' dtypes are not compared; all need the same number of
        bytes.
    :param src: the global rank whose bytes all ranks get.
    :param group: the process group; by default all ranks.
    """
    _size("broadcast_bytes", group, tensor)
    whole = _plain(tensor)
    dist.broadcast(_flat_bytes(whole), src, group)
    if whole is not tensor:
        tensor.copy_(whole)


@torch.no_grad()
def all_gather_bytes(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> None:
    """As :func:`torch.distributed.all_gather_single`, for every dtype: its bytes are moved.

    Each of n ranks receives n - 1 times the bytes of ``input_tensor``.

    :param output_tensor: contiguous, with n times the elements of ``input_tensor`` in its dtype.
    :param input_tensor: this rank's part, of any shape.
    :param group: the process group; by default all ranks.
    :raises ValueError: where the two tensors do not fit each other.
    """
    n = _size("all_gather_bytes", group, output_tensor, input_tensor)
    _check_outputs("all_gather_bytes", output_tensor, input_tensor)
    if output_tensor.numel() != n * input_tensor.numel():
        raise ValueError(
            f"all_gather_bytes: the output has {output_tensor.numel()} elements, and {n} ranks "
            f"with {input_tensor.numel()} each need {n * input_tensor.numel()}"
        )
    if input_tensor.numel():
        given = _flat_bytes(_plain(input_tensor))
        all_gather_single(_flat_bytes(output_tensor), given, group)


@torch.no_grad()
def all_to_all_bytes(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """As :func:`torch.distributed.all_to_all_single`, for every dtype: its bytes are moved.

    Each rank sends the bytes of ``input``, less its own part.

    :param output: contiguous; it gets the rows from all ranks.
    :param input: the rows for all ranks, in order of rank.
    :param output_split_sizes: rows of the first dimension from each rank; by default equal parts.
    :param input_split_sizes: rows of the first dimension to each rank; by default equal parts.
    :param group: the process group; by default all ranks.
    :raises ValueError: where the tensors do not fit each other, or the splits do not add up to the
        rows.
    """
    n = _size("all_to_all_bytes", group, output, input)
    _check_outputs("all_to_all_bytes", output, input)
    if not output.dim() or output.shape[1:] != input.shape[1:]:
        raise ValueError(
            f"all_to_all_bytes: rows of {list(output.shape[1:])} cannot hold rows of "
            f"{list(input.shape[1:])}: only the first dimension may differ"
        )
    row_bytes = input.dtype.itemsize * math.prod(input.shape[1:])
    splits = []
    for side, tensor, stated in (
        ("output", output, output_split_sizes),
        ("input", input, input_split_sizes),
    ):
        split = [len(tensor) // n] * n if stated is None else list(stated)
        if len(split) != n or min(split) < 0 or sum(split) != len(tensor):
            raise ValueError(
                f"all_to_all_bytes: the {side} has {len(tensor)} rows, which {split} does not "
                f"split among {n} ranks"
            )
        splits.append([each * row_bytes for each in split])
    taken, given = splits
    dist.all_to_all_single(
        _flat_bytes(output), _flat_bytes(_plain(input)), taken, given, group=group
    )


def _check_outputs(name: str, output: torch.Tensor, given: torch.Tensor) -> None:
    if output.dtype != given.dtype:
        raise ValueError(
            f"{name}: the output is {_dtype_name(output)}, and the input {_dtype_name(given)}"
        )
    if not output.is_contiguous() or output.is_conj() or output.is_neg():
        raise ValueError(f"{name}: the output is not contiguous: give a contiguous one")


def _size(name: str, group: dist.ProcessGroup | None, *tensors: torch.Tensor) -> int:
    """The number of ranks, of which this one is a member, for tensors that have bytes."""
    _check_dense(name, *tensors)
    n = dist.get_world_size(group)
    if n < 1:
        raise CollectiveError(f"{name}: this rank is not a member of the group")
    return n


def _check_dense(name: str, *tensors: torch.Tensor) -> None:
    for each in tensors:
        if each.layout != torch.strided:
            raise ValueError(f"{name} takes dense tensors: give tensor.to_dense()")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy whose bytes are its values in their order."""
    return tensor.contiguous().resolve_conj().resolve_neg()


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, which share its memory: uint8 [bytes]."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _op_name(op: object) -> str:
    return str(getattr(op, "op", op)).rpartition(".")[2]


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
