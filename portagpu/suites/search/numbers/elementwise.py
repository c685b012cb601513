"""Operations element by element: in every form, layout, broadcast and mixture of dtypes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
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

KINDS: Final = ("integers", "mixed", "special", "ends", "wide", "denormal", "last")
"""Few: "mixed" has nearly all of the others. With "last" the last operand alone has NaN, and
numbers of full width where it is whole."""
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
    request = _Request(
        name=op,
        dtype=dtype,
        other=_second_dtype(gpu, found, dtype, other or dtype),
        kind=_class(found, kind, dtype),
        shape=tuple(shape),
        layout=layout,
        second=beside,
        second_layout=other_layout,
        form=form,
        seed=seed,
    )
    return _Call(gpu, request.settled()).difference()


def _class(op: Pointwise, kind: str, dtype: str) -> str:
    if op.classes and kind not in op.classes:
        kind = op.classes[0]
    return "wide" if kind == "ones" and dtype in INTEGERS else kind


def _second_dtype(gpu: Backend, op: Pointwise, dtype: str, other: str) -> str:
    """The second operand's dtype: another one where mixtures are judged, and the device has it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One operation: its operands, and the form in which it is called."""

    name: str
    dtype: str
    other: str
    """The dtype of the second operand."""
    kind: str
    """The class of the operands' numbers."""
    shape: Shape
    layout: str
    second: str
    """The shape of the second operand against ``shape``: one of ``OTHERS``."""
    second_layout: str
    form: str
    seed: int

    @property
    def op(self) -> Pointwise:
        return OPS[self.name]

    def settled(self) -> _Request:
        """The request with a form, a second dtype and a layout that go together."""
        found = self
        if self.form == "in place" and self.layout not in WRITABLE:
            found = replace(found, layout="transposed")
        found = replace(found, form=self._possible_form())
        return replace(found, other=self.dtype) if found.form in ("same", "scalar") else found

    def _possible_form(self) -> str:
        """The form, if the operation and the dtypes have it, else a call that they have."""
        plain = "+" if self.name in OPERATORS else "method"
        match self.form:
            case "same" if self.op.is_limited:
                return plain
            case "scalar" if self.op.is_limited or self.op.arity != 2 or self.dtype == "bool":
                return plain
            case "scalar" if self.name in TENSORS_ALONE:
                return "again"
            case "conj" if self.dtype not in COMPLEX:
                return plain
            case "in place" if not self._is_possible_in_place():
                return "method"
            case "out" if self.name in NO_OUT:
                return "function"
            case "+":
                return plain
        return self.form

    def _is_possible_in_place(self) -> bool:
        import torch

        return self.result == self.dtype and hasattr(torch.Tensor, f"{self.name}_")

    @property
    def common(self) -> str:
        """The dtype in which torch computes."""
        if self.other == self.dtype:
            return self.dtype
        # a tensor without dimensions decides only among kinds
        order = ("bool", "int", "float", "complex")
        first, second = order.index(kind_of(self.dtype)), order.index(kind_of(self.other))
        if self.second == "no dimension" and self.shape and second <= first:
            return self.dtype
        if self.second == "no dimension" and self.shape and first == order.index("float"):
            # c10's toComplexType: the complex dtype of the other one's parts
            return "complex128" if self.dtype == "float64" else "complex64"
        return promoted(self.dtype, self.other)

    @property
    def result(self) -> str:
        """The dtype of the result."""
        common = self.common
        if self.op.result == "bool":
            return "bool"
        if self.op.result == "real":
            return COMPLEX.get(common, common)
        if self.op.result == "float" and kind_of(common) in ("int", "bool"):
            return "float32"
        return common

    @property
    def second_shape(self) -> Shape:
        """The shape of the second operand."""
        if not self.shape or self.second == "no dimension":
            return ()
        if self.second == "row":
            return self.shape[-1:]
        if self.second == "column":
            return (*self.shape[:-1], 1)
        return (1,) if self.second == "one element" else self.shape

    def __str__(self) -> str:
        dtypes = self.dtype if self.other == self.dtype else f"{self.dtype} and {self.other}"
        second = f", second {self.second}" if self.op.arity > 1 else ""
        return f"{self.name} of {dtypes} ({self.form}, {self.shape}, {self.layout}{second})"


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: its operands, what is right, and what the device gives."""

    gpu: Backend
    request: _Request

    def difference(self) -> str:
        """The first difference, as a clause; empty if there is none."""
        request = self.request
        op, form = request.op, request.form
        kind = "ordinary" if request.kind == "last" and op.arity > 1 else request.kind
        first = place(self.gpu, request.dtype, request.shape, request.layout, kind, request.seed)
        rest = self._rest()
        operands, a, values = [first, *rest], first.tensor, first.values
        if form == "conj":
            a, values = a.conj(), [each.conjugate() for each in values]
        if form == "same":
            operands = [first] * op.arity
            rest = operands[1:]
        columns = [values, *(self._spread(each) for each in rest)]
        given: list[Any] = [each.tensor for each in rest]
        if form == "scalar":
            scalars = POWERS if request.name == "div" else SCALARS
            scalar = scalars[request.seed % len(scalars)]
            if request.dtype == "uint8":
                scalar = abs(scalar)
            columns, given = [values, [scalar] * len(values)], [scalar]
            operands = [first]
        return self._run(a, given, operands, columns)

    def _rest(self) -> list[Placed]:
        """The operands after the first."""
        request, found = self.request, []
        kind = request.kind
        if kind == "special" and request.seed % 3 == 0:
            kind = "ordinary"
        for number in range(1, request.op.arity):
            if request.kind == "last":
                kind = "last" if number == request.op.arity - 1 else "ordinary"
            size = request.second_shape if number == 1 else request.shape
            seed = request.seed + number
            each = place(self.gpu, request.other, size, request.second_layout, kind, seed)
            found.append(self._limited(each, size) if request.op.is_limited else each)
        return found

    def _limited(self, placed: Placed, shape: Shape) -> Placed:
        """Divisors without 0 (undefined for integers), and counts of bits below the dtype's."""
        from portagpu.suites.search.numbers.tensors import host_tensor

        most = INTEGERS.get(self.request.dtype, 8)
        values = [
            abs(each) % most if self.request.op.count else each or type(each)(3)
            for each in placed.storage
        ]
        host = host_tensor(values, self.request.other)
        whole = host.clone().to(self.gpu.device)
        tensor = whole.as_strided(shape, placed.tensor.stride(), placed.tensor.storage_offset())
        mine = [values[each] for each in placed.where]
        return Placed(tensor, mine, whole, host, placed.where, tuple(values))

    def _spread(self, placed: Placed) -> list[Any]:
        """The elements as often as they are broadcast."""
        shape = tuple(placed.tensor.shape)
        if shape == self.request.shape:
            return placed.values
        return [placed.values[each] for each in broadcast_index(shape, self.request.shape)]

    def _right(self, columns: list[list[Any]]) -> list[Right]:
        """What is right for each element of those operands."""
        request = self.request
        common, result, is_scalar = request.common, request.result, request.form == "scalar"
        kept = []
        for values, source in zip(columns, (request.dtype, *[request.other] * 2), strict=False):
            same = source == common or is_scalar
            kept.append(values if same else [self._promoted(v, source, common) for v in values])
        if is_scalar and kind_of(common) in ("float", "complex"):
            kept[1] = [type(v)(w) for v, w in zip(kept[0], kept[1], strict=True)]
        op, none = request.op, [None] * size_of(request.shape)
        kept += [none] * (3 - len(kept))
        wanted: list[Right] = []
        for a, b, c in zip(*kept[:3], strict=True):
            lost = a is None or (op.arity > 1 and b is None)
            wanted.append(None if lost else finish(op.right(a, b, c, common), result))
        return wanted

    def _promoted(self, value: Any, source: str, common: str) -> Any:
        """``value`` in the common dtype; a tensor of one element may not have been rounded."""
        found = converted(value, source, common)
        one = 1 in (size_of(self.request.shape), size_of(self.request.second_shape))
        kept = not one or found == value or found != found
        return found if kept else None

    def _run(
        self,
        a: torch.Tensor,
        given: list[Any],
        operands: list[Placed],
        columns: list[list[Any]],
    ) -> str:
        import torch

        what, name, form = str(self.request), self.request.name, self.request.form
        wanted, result = self._right(columns), self.request.result
        function = getattr(torch, name)
        into: Placed | None = None
        if form == "in place":
            found = getattr(a, f"{name}_")(*given)
            into = operands[0]
        elif form == "out":
            seed, shape = self.request.seed, self.request.shape
            layout = WRITABLE[seed % len(WRITABLE)]
            into = place(self.gpu, result, shape, layout, "integers", seed + 5)
            found = function(a, *given, out=into.tensor)
        elif form == "method":
            found = getattr(a, name)(*given)
        elif form == "+":
            found = OPERATORS[name](a, *given)
        else:
            found = function(a, *given)
            if form == "again":
                found = function(a, *given)
        if into is not None:
            if found.data_ptr() != into.tensor.data_ptr():
                return f"{what} returned another tensor than the one that it was to write"
            found = into.tensor
        wrong = wrong_result(found, wanted, self.request.shape, result, signs=self._signs())
        if wrong:
            return f"{what} {wrong}{self._explanation(found, wanted, into, operands, columns)}"
        if into is not None and (changed := into.changed(written=True)):
            return f"{what} wrote outside its elements: {changed}"
        for number, each in enumerate(operands, 1):
            if each is not into and (changed := each.changed()):
                return f"{what} wrote operand {number}: {changed}"
        return ""

    def _signs(self) -> bool:
        """Whether zeros have their signs: torch adds complex numbers times one, by (1+0j)."""
        return self.request.op.signs and kind_of(self.request.common) != "complex"

    def _explanation(
        self,
        found: torch.Tensor,
        wanted: list[Right],
        into: Placed | None,
        operands: list[Placed],
        columns: list[list[Any]],
    ) -> str:
        """What the whole result shows: an element not written, strides ignored, operands."""
        dtype, form = self.request.dtype, self.request.form
        got, first = listed(found), operands[0]
        if len(got) != len(wanted):
            return ""
        bad = next((i for i, w in enumerate(wanted) if wrong_elements([got[i]], [w], dtype)), 0)
        if into is not None and str(got[bad]) == str(into.values[bad]):
            return "; it was not written"
        enough = len(first.storage) >= len(got) and form not in ("conj", "in place")
        if enough and not first.tensor.is_contiguous():
            stored = [list(first.storage[: len(got)]), *columns[1:]]
            if not wrong_elements(got, self._right(stored), dtype, signs=False):
                return "; the strides were ignored"
        if form == "conj":
            plain = [[each.conjugate() for each in columns[0]], *columns[1:]]
            if not wrong_elements(got, self._right(plain), dtype, signs=False):
                return "; the conjugate view was read as it is"
        values = [each[bad] for each in columns if bad < len(each)]
        return f" (of {', '.join(map(str, values))})"
