"""Operations element by element: in every form, layout, broadcast and mixture of dtypes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import COMPLEX, INTEGERS, converted, kind_of, promoted
from portagpu.suites.search.numbers.pointwise import OPS, Pointwise, finish
from portagpu.suites.search.numbers.tensors import (
    WRITABLE,
    Placed,
    Right,
    Shape,
    broadcast_index,
    listed,
    place,
    size_of,
    wrong_elements,
    wrong_result,
)

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend

KINDS: Final = ("integers", "mixed", "special", "wide", "denormal")
"""Few: "mixed" has nearly all of the others."""
FORMS: Final = ("function", "method", "in place", "out", "again", "scalar", "conj", "same", "+")
"""torch.add(a, b), a.add(b), a.add_(b), torch.add(a, b, out=c), twice, with a Python number as the
second operand, with a conjugate view as the first, with the first as the second too, and a + b."""
OPERATORS: Final[dict[str, Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "remainder": operator.mod,
    "floor_divide": operator.floordiv,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_not": operator.invert,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
}
"""Python's own, which are methods of their own of a tensor."""
OTHERS: Final = ("equal", "row", "column", "one element", "no dimension")
"""The shape of the second operand against that of the first."""
SCALARS: Final = (2, -1, 3, 1, 4, 8, -2, 5)
POWERS: Final = (2, -1, 4, 8, 1, -2)
"""Divisors: by another number torch may multiply by its reciprocal, which rounds twice
(pytorch v2.13.0, aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu)."""
SHAPES: Final = ((7,), (), (1,), (3, 5), (33,), (2, 3, 4), (65,), (0, 3), (9, 7), (300,), (17, 19))
NO_OUT: Final = ("relu", "isnan", "isinf", "isfinite")
TENSORS_ALONE: Final = (
    *("maximum", "minimum", "fmax", "fmin", "copysign"),
    *("logical_and", "logical_or", "logical_xor"),
)
"""The operations that take no Python number."""


def elementwise_difference(
    gpu: Backend,
    op: str,
    dtype: str,
    other: str,
    kind: str,
    shape: list[int],
    layout: str,
    beside: str,
    form: str,
    seed: int,
    other_layout: str = "plain",
) -> str:
    """The first difference of one operation, as a clause; no ``other`` is the same dtype."""
    found = OPS[op]
    if kind_of(dtype) not in found.kinds.split():
        return ""
    other = _second_dtype(gpu, found, dtype, other or dtype)
    rest = (layout, beside, form, seed, other_layout)
    call = _Call(gpu, op, found, dtype, other, tuple(shape), *rest)
    return call.difference(_class(found, kind, dtype))


def _class(op: Pointwise, kind: str, dtype: str) -> str:
    if op.classes and kind not in op.classes:
        kind = op.classes[0]
    return "wide" if kind == "ones" and dtype in INTEGERS else kind


def _second_dtype(gpu: Backend, op: Pointwise, dtype: str, other: str) -> str:
    """The second operand's dtype: another one where mixtures are told, and the device has it."""
    import torch

    kinds = op.kinds.split()
    mixed = op.arity == 2 and op.result != "float" and not op.count and not op.divisor
    if not mixed or kind_of(other) not in kinds:
        return dtype
    halves = {"float16", "bfloat16"} & {dtype, other}
    if halves and (dtype in COMPLEX or other in COMPLEX):
        # complex32, which torch calls experimental
        return dtype
    support = str(gpu.precision.support(getattr(torch, promoted(dtype, other))))
    return other if support not in ("none", "storage") else dtype


class _Call:
    """One call: its operands, what is right, and what the device gives."""

    def __init__(
        self,
        gpu: Backend,
        name: str,
        op: Pointwise,
        dtype: str,
        other: str,
        shape: Shape,
        layout: str,
        beside: str,
        form: str,
        seed: int,
        other_layout: str,
    ) -> None:
        self.gpu, self.name, self.op, self.shape = gpu, name, op, shape
        self.dtype, self.other, self.other_layout = dtype, other, other_layout
        self.layout, self.beside, self.form, self.seed = layout, beside, form, seed

    def difference(self, kind: str) -> str:
        """The first one."""
        self._settle()
        first = place(self.gpu, self.dtype, self.shape, self.layout, kind, self.seed)
        rest = self._rest(kind)
        operands, a, values = [first, *rest], first.tensor, first.values
        if self.form == "conj":
            a, values = a.conj(), [each.conjugate() for each in values]
        if self.form == "same":
            operands = [first] * self.op.arity
            rest = operands[1:]
        columns = [values, *(self._spread(each) for each in rest)]
        given: list[Any] = [each.tensor for each in rest]
        if self.form == "scalar":
            scalars = POWERS if self.name == "div" else SCALARS
            scalar = scalars[self.seed % len(scalars)]
            if self.dtype == "uint8":
                scalar = abs(scalar)
            columns, given = [values, [scalar] * len(values)], [scalar]
            operands = [first]
        wanted, common = self._right(columns)
        return self._run(a, given, wanted, common, operands, columns)

    def _settle(self) -> None:
        """A form that these dtypes do not have becomes a plain call."""
        import torch

        if self.op.count or self.op.divisor:
            self.form = "+" if self.form in ("scalar", "same") else self.form
        if self.form == "conj" and self.dtype not in COMPLEX:
            self.form = "+"
        if self.form == "scalar" and (self.op.arity != 2 or self.dtype == "bool"):
            self.form = "+"
        if self.form == "scalar" and self.name in TENSORS_ALONE:
            self.form = "again"
        if self.form in ("same", "scalar"):
            self.other = self.dtype
        if self.form == "in place":
            self.layout = self.layout if self.layout in WRITABLE else "transposed"
            missing = not hasattr(torch.Tensor, f"{self.name}_")
            if self._result() != self.dtype or missing:
                self.form = "method"
        if self.form == "out" and self.name in NO_OUT:
            self.form = "function"
        if self.form == "+" and self.name not in OPERATORS:
            self.form = "method"

    def _common(self) -> str:
        if self.other == self.dtype:
            return self.dtype
        # a tensor without dimensions decides only among kinds
        order = ("bool", "int", "float", "complex")
        first, second = order.index(kind_of(self.dtype)), order.index(kind_of(self.other))
        if self.beside == "no dimension" and self.shape and second <= first:
            return self.dtype
        if self.beside == "no dimension" and self.shape and first == order.index("float"):
            # c10's toComplexType: the complex dtype of the other one's parts
            return "complex128" if self.dtype == "float64" else "complex64"
        return promoted(self.dtype, self.other)

    def _result(self) -> str:
        common = self._common()
        if self.op.result == "bool":
            return "bool"
        if self.op.result == "real":
            return COMPLEX.get(common, common)
        if self.op.result == "float" and kind_of(common) in ("int", "bool"):
            return "float32"
        return common

    def _rest(self, kind: str) -> list[Placed]:
        shape = _beside(self.shape, self.beside)
        found = []
        for number in range(1, self.op.arity):
            size = shape if number == 1 else self.shape
            what = "ordinary" if kind == "special" and self.seed % 3 == 0 else kind
            each = place(self.gpu, self.other, size, self.other_layout, what, self.seed + number)
            if self.op.divisor or self.op.count:
                each = self._limited(each, size)
            found.append(each)
        return found

    def _limited(self, placed: Placed, shape: Shape) -> Placed:
        """Divisors without 0 (undefined for integers), and counts of bits below the dtype's."""
        from portagpu.suites.search.numbers.tensors import host_tensor

        most = INTEGERS.get(self.dtype, 8)
        values = [
            abs(each) % most if self.op.count else each or type(each)(3) for each in placed.storage
        ]
        host = host_tensor(values, self.other)
        whole = host.clone().to(self.gpu.device)
        tensor = whole.as_strided(shape, placed.tensor.stride(), placed.tensor.storage_offset())
        mine = [values[each] for each in placed.where]
        return Placed(tensor, mine, whole, host, placed.where, tuple(values))

    def _spread(self, placed: Placed) -> list[Any]:
        """The elements as often as they are broadcast."""
        shape = tuple(placed.tensor.shape)
        if shape == self.shape:
            return placed.values
        return [placed.values[each] for each in broadcast_index(shape, self.shape)]

    def _right(self, columns: list[list[Any]]) -> tuple[list[Right], str]:
        common, result = self._common(), self._result()
        kept = []
        for values, source in zip(columns, (self.dtype, *[self.other] * 2), strict=False):
            same = source == common or self.form == "scalar"
            kept.append(values if same else [self._promoted(v, source, common) for v in values])
        if self.form == "scalar" and kind_of(common) in ("float", "complex"):
            kept[1] = [type(v)(w) for v, w in zip(kept[0], kept[1], strict=True)]
        right, none = self.op.right, [None] * size_of(self.shape)
        kept += [none] * (3 - len(kept))
        wanted: list[Right] = []
        for a, b, c in zip(*kept[:3], strict=True):
            lost = a is None or (self.op.arity > 1 and b is None)
            wanted.append(None if lost else finish(right(a, b, c, common), result))
        return wanted, result

    def _promoted(self, value: Any, source: str, common: str) -> Any:
        """``value`` in the common dtype; a tensor of one element may not have been rounded."""
        found = converted(value, source, common)
        one = 1 in (size_of(self.shape), size_of(_beside(self.shape, self.beside)))
        kept = not one or found == value or found != found
        return found if kept else None

    def _run(
        self,
        a: torch.Tensor,
        given: list[Any],
        wanted: list[Right],
        result: str,
        operands: list[Placed],
        columns: list[list[Any]],
    ) -> str:
        import torch

        what = self._what()
        function = getattr(torch, self.name)
        into: Placed | None = None
        if self.form == "in place":
            found = getattr(a, f"{self.name}_")(*given)
            into = operands[0]
        elif self.form == "out":
            layout = WRITABLE[self.seed % len(WRITABLE)]
            into = place(self.gpu, result, self.shape, layout, "integers", self.seed + 5)
            found = function(a, *given, out=into.tensor)
        elif self.form == "method":
            found = getattr(a, self.name)(*given)
        elif self.form == "+":
            found = OPERATORS[self.name](a, *given)
        else:
            found = function(a, *given)
            if self.form == "again":
                found = function(a, *given)
        if into is not None:
            if found.data_ptr() != into.tensor.data_ptr():
                return f"{what} returned another tensor than the one that it was to write"
            found = into.tensor
        wrong = wrong_result(found, wanted, self.shape, result, signs=self._signs())
        if wrong:
            return f"{what} {wrong}{self._why(found, wanted, into, operands, columns)}"
        if into is not None and (changed := into.changed(written=True)):
            return f"{what} wrote beside its elements: {changed}"
        for number, each in enumerate(operands, 1):
            if each is not into and (changed := each.changed()):
                return f"{what} wrote operand {number}: {changed}"
        return ""

    def _signs(self) -> bool:
        """Whether the sign of a zero is told: torch adds complex numbers times one, by (1+0j)."""
        return self.op.signs and kind_of(self._common()) != "complex"

    def _what(self) -> str:
        dtypes = self.dtype if self.other == self.dtype else f"{self.dtype} and {self.other}"
        beside = f", second {self.beside}" if self.op.arity > 1 else ""
        return f"{self.name} of {dtypes} ({self.form}, {self.shape}, {self.layout}{beside})"

    def _why(
        self,
        found: torch.Tensor,
        wanted: list[Right],
        into: Placed | None,
        operands: list[Placed],
        columns: list[list[Any]],
    ) -> str:
        """What the whole result tells: an element not written, strides ignored, operands."""
        got, first = listed(found), operands[0]
        if len(got) != len(wanted):
            return ""
        bad = next(
            (i for i, w in enumerate(wanted) if wrong_elements([got[i]], [w], self.dtype)), 0
        )
        if into is not None and str(got[bad]) == str(into.values[bad]):
            return "; it was not written"
        enough = len(first.storage) >= len(got) and self.form not in ("conj", "in place")
        if enough and not first.tensor.is_contiguous():
            stored = [list(first.storage[: len(got)]), *columns[1:]]
            if not wrong_elements(got, self._right(stored)[0], self.dtype, signs=False):
                return "; the strides were ignored"
        if self.form == "conj":
            plain = [[each.conjugate() for each in columns[0]], *columns[1:]]
            if not wrong_elements(got, self._right(plain)[0], self.dtype, signs=False):
                return "; the conjugate view was read as it is"
        values = [each[bad] for each in columns if bad < len(each)]
        return f" (of {', '.join(map(str, values))})"


def _beside(shape: Shape, beside: str) -> Shape:
    if not shape or beside == "no dimension":
        return ()
    if beside == "row":
        return shape[-1:]
    if beside == "column":
        return (*shape[:-1], 1)
    return (1,) if beside == "one element" else shape
