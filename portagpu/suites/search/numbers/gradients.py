"""Gradients of operations on matrices, as ``backward`` adds them up and ``grad`` returns them.

``pull(x, y, g)`` of an operation gives the right gradients of both operands for the gradient g of
its result, as rows. Operands are whole numbers, so that most gradients are exact. Where an
operation has no derivative the right one is what torch documents (amax shares it among the equal
ones) or has in tools/autograd/derivatives.yaml (pytorch v2.13.0: clamp passes it at its ends, abs
and relu have 0 at 0); where two operands of maximum are equal nothing is claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.compare import Right, Within, wrong_result
from portagpu.suites.search.numbers.formats import rounded, roundoff
from portagpu.suites.search.numbers.tensors import WRITABLE, place

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend

from portagpu.suites.search.numbers.vjps import Rows, Step, steps

SIZES: Final = ((3, 5), (1, 7), (5, 1), (9, 7), (1, 1), (0, 4), (33, 8))
FORMS: Final = ("backward", "accumulate", "grad", "retain", "detached")
OPS: Final = (
    *("add", "sub", "mul", "where", "maximum", "square", "neg", "abs", "relu", "clamp", "exp"),
    *("tanh", "sigmoid", "masked_fill", "sum", "mean", "amax", "max", "prod", "cumsum", "softmax"),
    *("gather", "index_select", "transpose", "flip", "cat", "slice", "expand", "add a row"),
    *("multiply by a row", "matmul", "linear", "cast", "chain"),
)


def gradient_difference(
    gpu: Backend, op: str, dtype: str, shape: list[int], layout: str, form: str, seed: int
) -> str:
    """The first difference of the gradients of one operation, as a clause."""
    import torch

    step = steps()[op]
    if (step.wide and dtype not in ("float32", "float64")) or (not step.empty and 0 in shape):
        return ""
    m, n = shape
    if m == 0 and op in ("max", "amax", "prod", "gather", "index_select"):
        return ""
    first = place(gpu, dtype, (m, n), layout, "integers", seed)
    sizes = {"same": (m, n), "row": (1, n), "square": (n, 3), "none": (1, 1)}[step.other]
    second = place(gpu, dtype, sizes, "plain", "integers", seed + 1)
    x, y = (each.tensor.detach().requires_grad_() for each in (first, second))
    result = step.make(x, y, gpu)
    back = place(
        gpu,
        str(result.dtype).removeprefix("torch."),
        tuple(result.shape),
        WRITABLE[seed % len(WRITABLE)],
        "integers",
        seed + 2,
    )
    a, b, g = (_rows(each.values, tuple(each.tensor.shape)) for each in (first, second, back))
    wanted = step.pull(a, b, g, dtype)
    leaves = [x] if step.other == "none" else [x, y]
    gradients, times = _gradients(step, form, leaves, (x, y), result, back.tensor, gpu)
    what = f"of {op} of {dtype} ({form}, {(m, n)}, {layout})"
    for number, (leaf, got, right) in enumerate(zip(leaves, gradients, wanted, strict=False), 1):
        told = f"the gradient {number} {what}"
        if got is None:
            return f"{told} is missing"
        flat = [_times(each, times, dtype) for line in right or [] for each in line]
        wrong = wrong_result(got, flat, tuple(leaf.shape), dtype, signs=False)
        if wrong:
            return f"{told} {wrong}{_why(got, right, times, dtype)}"
    operands = [("operand 1", first), ("operand 2", second)]
    if times == 1:
        # a leaf may keep a view of the gradient given, and add the next one into it
        # (pytorch v2.13.0, torch/csrc/autograd/functions/accumulate_grad.h, case 1.2)
        operands.append(("the gradient given", back))
    for name, each in operands:
        if changed := each.changed():
            return f"the gradient {what} wrote {name}: {changed}"
    if form == "detached" and torch.is_grad_enabled() and x.detach().requires_grad:
        return f"what was detached {what} still asks for a gradient"
    return ""


def _rows(values: list[Any], shape: tuple[int, ...]) -> Rows:
    m, n = shape
    return [values[i * n : (i + 1) * n] for i in range(m)]


def _gradients(
    step: Step,
    form: str,
    leaves: list[torch.Tensor],
    operands: tuple[torch.Tensor, torch.Tensor],
    result: torch.Tensor,
    back: torch.Tensor,
    gpu: Backend,
) -> tuple[list[Any], int]:
    """(the gradients, how often they are added up)."""
    import torch

    if form == "grad":
        return list(torch.autograd.grad(result, leaves, back)), 1
    if form == "accumulate":
        result.backward(back)
        step.make(*operands, gpu).backward(back)
        return [each.grad for each in leaves], 2
    if form == "retain":
        result.backward(back, retain_graph=True)
        result.backward(back)
        return [each.grad for each in leaves], 2
    if form == "detached":
        with torch.no_grad():
            step.make(*operands, gpu)
        step.make(operands[0].detach(), operands[1].detach(), gpu)
    result.backward(back)
    return [each.grad for each in leaves], 1


def _times(right: Right, times: int, dtype: str) -> Right:
    """The sum of equal gradients."""
    if right is None or times == 1:
        return right
    if isinstance(right, Within):
        value = times * right.value
        return Within(value, times * right.bound + 2 * roundoff(dtype) * abs(value))
    return rounded(float(times * right), dtype)


def _why(got: torch.Tensor, right: Rows | None, times: int, dtype: str) -> str:
    """Whether it was added up too often or too seldom."""
    from portagpu.suites.search.numbers.compare import wrong_elements
    from portagpu.suites.search.numbers.tensors import listed

    for other, told in ((1, "it was not added to the first"), (2, "it was added twice")):
        flat = [_times(each, other, dtype) for line in right or [] for each in line]
        if other != times and not wrong_elements(listed(got), flat, dtype, signs=False):
            return f": {told}"
    return ": all of it is 0" if not any(listed(got)) else ""
