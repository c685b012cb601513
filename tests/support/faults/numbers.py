"""Faults of casts, arithmetic, sums, products, indexing, gradients and attention."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

functional: Any = torch.nn.functional
HALVES = (torch.float16, torch.bfloat16)

POINTWISE = {
    "add": "bifc",
    "sub": "ifc",
    "mul": "bifc",
    "div": "f",
    "neg": "ifc",
    "abs": "ifc",
    "sqrt": "f",
    "reciprocal": "f",
    "round": "f",
    "floor": "f",
    "relu": "if",
    "maximum": "if",
    "fmin": "if",
    "remainder": "if",
    "fmod": "if",
    "floor_divide": "if",
    "clamp": "if",
    "addcmul": "if",
    "exp": "f",
    "log": "f",
    "tanh": "f",
    "bitwise_and": "bi",
    "bitwise_right_shift": "i",
    "nan_to_num": "f",
}
"""Operations with the kinds of numbers that they take: bool, int, float, complex."""
ORDERS = {"lt": "if", "ge": "if", "eq": "ifc", "isnan": "f", "logical_and": "bif"}
REDUCTIONS = {
    "sum": "bifc",
    "mean": "f",
    "prod": "i",
    "amax": "if",
    "amin": "if",
    "argmax": "if",
    "cumsum": "ifc",
    "softmax": "f",
    "count_nonzero": "if",
}
PRODUCTS = {
    "mm": "fc",
    "matmul": "fc",
    "bmm": "fc",
    "mv": "fc",
    "addmm": "fc",
    "baddbmm": "fc",
    "outer": "fc",
    "linear": "fc",
}
MOVES = {
    "gather": "ifc",
    "scatter": "ifc",
    "scatter_add": "ifc",
    "index_select": "ifc",
    "index_add": "ifc",
    "masked_fill": "ifc",
    "masked_select": "ifc",
    "where": "ifc",
    "sort": "if",
    "topk": "if",
    "flip": "ifc",
    "roll": "ifc",
    "cat": "ifc",
    "tril": "ifc",
    "index_copy": "ifc",
    "masked_scatter": "ifc",
    "nonzero": "if",
}


def _places(op: str) -> list[tuple[Any, str]]:
    """Where torch has the operation: as a function, a method, in place, an operator."""
    if op == "linear":
        return [(functional, "linear")]
    names = [(torch, op), (torch.Tensor, op), (torch.Tensor, f"{op}_")]
    operators = {"add": "add", "sub": "sub", "mul": "mul", "matmul": "matmul", "neg": "neg"}
    if op in operators:
        names.append((torch.Tensor, f"__{operators[op]}__"))
    return [(place, name) for place, name in names if hasattr(place, name)]


def _operands(given: Any, named: Any) -> list[torch.Tensor]:
    flat = [*given, *named.values()]
    flat = [each for part in flat for each in (part if isinstance(part, (list, tuple)) else [part])]
    return [each for each in flat if isinstance(each, torch.Tensor)]


def _numbers(given: Any, named: Any) -> list[torch.Tensor]:
    """The operands that are neither masks nor indices, but where there is nothing else."""
    every = _operands(given, named)
    floats = [each for each in every if each.is_floating_point() or each.is_complex()]
    whole = [each for each in every if each.dtype != torch.bool]
    return floats or whole or every


def _has(test: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., bool]:
    def region(given: Any, named: Any) -> bool:
        return any(
            each.is_floating_point() and each.element_size() > 1 and bool(test(each.detach()).any())
            for each in _operands(given, named)
        )

    return region


def _first(test: Callable[[torch.Tensor], bool]) -> Callable[..., bool]:
    def region(given: Any, named: Any) -> bool:
        every = _numbers(given, named)
        return bool(every) and test(every[0])

    return region


def _any(test: Callable[[torch.Tensor], bool]) -> Callable[..., bool]:
    return lambda given, named: any(map(test, _numbers(given, named)))


CALLS = [0]


def _second_call(given: Any, named: Any) -> bool:
    CALLS[0] += 1
    return CALLS[0] % 2 == 0


REGIONS: dict[str, tuple[str, Callable[..., bool]]] = {
    "everywhere": ("bifc", lambda given, named: True),
    "of float16": ("f", _any(lambda x: x.dtype == torch.float16)),
    "of bfloat16": ("f", _any(lambda x: x.dtype == torch.bfloat16)),
    "of float64": ("f", _any(lambda x: x.dtype == torch.float64)),
    "of 8 bits": ("i", _first(lambda x: x.dtype in (torch.int8, torch.uint8))),
    "of int64": ("i", _first(lambda x: x.dtype == torch.int64)),
    "of complex numbers": ("c", _first(lambda x: x.is_complex())),
    "of more than 256": ("bifc", _any(lambda x: x.numel() > 256)),
    "of 17 to 65 elements": ("bifc", _first(lambda x: 17 <= x.numel() <= 65)),
    "of one element": ("bifc", _first(lambda x: x.numel() == 1)),
    "of a strided operand": ("bifc", _any(lambda x: not x.is_contiguous())),
    "of an operand that begins inside its storage": (
        "bifc",
        _any(lambda x: x.storage_offset() > 0),
    ),
    "of an operand with a stride of 0": (
        "bifc",
        _any(lambda x: any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True))),
    ),
    "with a NaN": ("f", _has(torch.isnan)),
    "with a denormal": (
        "f",
        _has(lambda x: (x != 0) & (x.double().abs() < torch.finfo(x.dtype).tiny)),
    ),
    "at the second call": ("bifc", _second_call),
    "of odd sizes": (
        "bifc",
        _first(lambda x: x.numel() > 2 and x.shape[-1] % 2 == 1 if x.dim() else False),
    ),
}


def _result(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found[0]


def _edit(found: Any, change: Callable[[torch.Tensor], None]) -> Any:
    """Write into the result, without telling autograd."""
    tensor = _result(found)
    if tensor.numel():
        change(tensor.data)
    return found


def _one_more(tensor: torch.Tensor, index: int) -> None:
    """Another number at one place, far from the right one."""
    at = tuple(_unravel(index % tensor.numel(), tensor.shape))
    value = tensor[at]
    if tensor.dtype == torch.bool:
        tensor[at] = ~value
    elif tensor.is_floating_point() or tensor.is_complex():
        bad = torch.isfinite(value.abs())
        tensor[at] = value + 1 + value.abs() if bool(bad) else 1
    else:
        tensor[at] = value ^ 1


def _unravel(index: int, shape: Any) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(index % size)
        index //= size
    return found[::-1]


def _last_lost(found: Any, given: Any, named: Any) -> Any:
    return _edit(found, lambda t: _one_more(t, t.numel() - 1))


def _first_wrong(found: Any, given: Any, named: Any) -> Any:
    return _edit(found, lambda t: _one_more(t, 0))


def _middle_wrong(found: Any, given: Any, named: Any) -> Any:
    return _edit(found, lambda t: _one_more(t, t.numel() // 2))


def _all_negative(found: Any, given: Any, named: Any) -> Any:
    return _edit(
        found,
        lambda t: t.copy_(-t.clone() + (t == 0)) if t.dtype != torch.bool else t.copy_(~t.clone()),
    )


def _input_written(found: Any, given: Any, named: Any) -> Any:
    out = named.get("out")
    for each in _numbers(given, {}):
        if each is not found and each is not out and each.numel():
            _one_more(each.data, each.numel() - 1)
            return found
    return found


def _reversed_result(found: Any, given: Any, named: Any) -> Any:
    """The elements in another order, as where strides are mixed up."""
    return _edit(found, lambda t: t.copy_(t.flatten().flip(0).clone().reshape(t.shape)))


def _block_unwritten(found: Any, given: Any, named: Any) -> Any:
    """The tail beyond a multiple of 4 is one element off."""

    def change(t: torch.Tensor) -> None:
        tail = t.numel() % 4
        if tail:
            _one_more(t, t.numel() - tail)

    return _edit(found, change)


def _gradient(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def wrong(found: Any, given: Any, named: Any) -> Any:
        tensor = _result(found)
        if tensor.requires_grad:
            tensor.register_hook(change)
        return found

    return wrong


def _without_last(g: torch.Tensor) -> torch.Tensor:
    g = g.clone()
    if g.numel():
        g[tuple(_unravel(g.numel() - 1, g.shape))] += 1
    return g


WRONGS: dict[str, Callable[..., Any]] = {
    "the last element is wrong": _last_lost,
    "the first element is wrong": _first_wrong,
    "the middle element is wrong": _middle_wrong,
    "the sign is wrong": _all_negative,
    "the first operand is written": _input_written,
    "the elements are in another order": _reversed_result,
    "the tail of 4 is wrong": _block_unwritten,
}
GRADIENTS: dict[str, Callable[..., Any]] = {
    "the gradient is doubled": _gradient(lambda g: g * 2),
    "the gradient is 0": _gradient(torch.zeros_like),
    "the last gradient is wrong": _gradient(_without_last),
    "the gradient has the other sign": _gradient(lambda g: -g),
}


def _flushed(found: Any, given: Any, named: Any) -> Any:
    def change(t: torch.Tensor) -> None:
        if t.is_floating_point():
            t[t.double().abs() < torch.finfo(t.dtype).tiny] = 0

    return _edit(found, change)


def _nan_to_zero(found: Any, given: Any, named: Any) -> Any:
    return _edit(
        found, lambda t: t[t.isnan()].zero_() if not t.dim() else t.masked_fill_(t.isnan(), 0)
    )


def _infinity_saturated(found: Any, given: Any, named: Any) -> Any:
    def change(t: torch.Tensor) -> None:
        most = torch.finfo(t.dtype).max
        t.clamp_(-most, most)

    return _edit(found, change)


def _minus_zero_lost(found: Any, given: Any, named: Any) -> Any:
    return _edit(found, lambda t: t.masked_fill_(t == 0, 0.0))


def _next_number(found: Any, given: Any, named: Any) -> Any:
    """All are one number of the format further from zero."""

    def change(t: torch.Tensor) -> None:
        bits = t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
        good = torch.isfinite(t) & (t.abs() < torch.finfo(t.dtype).max) & (t != 0)
        bits += good.to(bits.dtype)

    return _edit(found, change)


FLOAT_WRONGS = {
    "denormals become 0": (_flushed, ("add", "sub", "mul", "neg", "abs", "maximum", "clamp")),
    "NaN becomes 0": (
        _nan_to_zero,
        ("add", "mul", "div", "maximum", "clamp", "abs", "sum", "amax", "mm", "matmul", "cumsum"),
    ),
    "infinity is saturated": (_infinity_saturated, ("add", "mul", "div", "neg", "abs", "exp")),
    "-0.0 becomes 0.0": (_minus_zero_lost, ("neg", "mul", "sqrt", "round", "floor")),
    "one number too far": (
        _next_number,
        ("add", "sub", "mul", "div", "reciprocal", "round", "addcmul"),
    ),
}


def _block(places: list[tuple[Any, str]], change: Callable[..., Any]) -> Callable[[], Any]:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place, name in places:
                stack.enter_context(replaced(place, name, change))
            yield

    return block


INSIDE = [False]
"""Whether a faulty call is under way: what it calls itself is right."""


def _faulty(region: Callable[..., bool], wrong: Callable[..., Any]) -> Callable[..., Any]:
    def change(good: Any, *given: Any, **named: Any) -> Any:
        if INSIDE[0]:
            return good(*given, **named)
        INSIDE[0] = True
        try:
            hit = region(given, named)
            found = good(*given, **named)
            return wrong(found, given, named) if hit else found
        finally:
            INSIDE[0] = False

    return change


def _equivalent(op: str, where: str, wrong: str) -> bool:
    """Whether nothing could show it."""
    if wrong == "the elements are in another order" and where == "of one element":
        return True
    # a function of a library may flush, and a sum is judged within its bound
    return where == "with a denormal" and op in (*PRODUCTS, *REDUCTIONS, "exp", "log", "tanh")


def _of_operations() -> list[Fault]:
    found = []
    every = {**POINTWISE, **ORDERS, **REDUCTIONS, **PRODUCTS, **MOVES}
    for (op, kinds), (where, (of, region)), (wrong, change) in product(
        every.items(), REGIONS.items(), WRONGS.items()
    ):
        if not set(of) & set(kinds) or _equivalent(op, where, wrong):
            continue
        found.append(_fault(op, where, wrong, region, change))
    for wrong, (change, ops) in FLOAT_WRONGS.items():
        for op, (where, (of, region)) in product(ops, REGIONS.items()):
            if "f" not in of or not _has_one_answer(op, where, wrong):
                continue
            found.append(_fault(op, where, wrong, _float_result(region), change))
    return found


def _float_result(region: Callable[..., bool]) -> Callable[..., bool]:
    def both(given: Any, named: Any) -> bool:
        every = _operands(given, named)
        floats = all(each.is_floating_point() for each in every)
        return bool(every) and floats and region(given, named)

    return both


def _has_one_answer(op: str, where: str, wrong: str) -> bool:
    """Whether the result can have such numbers there, and the dtype's rules say what is right."""
    if wrong == "denormals become 0":
        return where != "with a NaN"
    if wrong == "one number too far" and op == "addcmul":
        return False
    return not (op in ("exp", "mm", "matmul", "cumsum") and where == "with a denormal")


def _fault(op: str, where: str, wrong: str, region: Any, change: Any) -> Fault:
    return Fault("numbers", f"{op}: {where}: {wrong}", _block(_places(op), _faulty(region, change)))


GRADIENT_OPS = {
    "add": "f",
    "mul": "f",
    "where": "f",
    "maximum": "f",
    "abs": "f",
    "relu": "f",
    "clamp": "f",
    "exp": "f",
    "tanh": "f",
    "sum": "f",
    "mean": "f",
    "amax": "f",
    "prod": "f",
    "cumsum": "f",
    "softmax": "f",
    "gather": "f",
    "index_select": "f",
    "cat": "f",
    "matmul": "f",
    "linear": "f",
    "masked_fill": "f",
}
GRADIENT_REGIONS = (
    *("everywhere", "of float16", "of bfloat16", "of float64", "of more than 256"),
    *("of a strided operand", "at the second call", "of an operand with a stride of 0"),
    "of an operand that begins inside its storage",
)


def _of_gradients() -> list[Fault]:
    return [
        _fault(op, f"backward, {where}", wrong, REGIONS[where][1], change)
        for op, where, (wrong, change) in product(GRADIENT_OPS, GRADIENT_REGIONS, GRADIENTS.items())
    ]


SOURCES = {
    "everything": lambda x: True,
    "float32": lambda x: x.dtype == torch.float32,
    "float64": lambda x: x.dtype == torch.float64,
    "float16": lambda x: x.dtype == torch.float16,
    "bfloat16": lambda x: x.dtype == torch.bfloat16,
    "int64": lambda x: x.dtype == torch.int64,
    "int32": lambda x: x.dtype == torch.int32,
    "float8_e4m3fn": lambda x: x.dtype == torch.float8_e4m3fn,
    "a strided tensor": lambda x: not x.is_contiguous(),
    "more than 256": lambda x: x.numel() > 256,
}
TARGETS = (
    *("float16", "bfloat16", "float32", "int8", "uint8", "int32", "bool"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
)


def _as_float(x: torch.Tensor) -> torch.Tensor:
    return x.double()


def _integer_bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    )


def _toward_zero(good: torch.Tensor, x: torch.Tensor) -> None:
    """Rounded toward zero and not to the nearest."""
    too_far = _as_float(good).abs() > _as_float(x).abs()
    too_far &= _as_float(good).isfinite()
    bits = _integer_bits(good)
    bits -= too_far.to(bits.dtype)


def _ties_away(good: torch.Tensor, x: torch.Tensor) -> None:
    """Ties go away from zero: those that went toward it are one number further."""
    bits = _integer_bits(good)
    beyond = bits + 1
    other = _as_float(beyond.view(good.dtype))
    near, value = _as_float(good), _as_float(x)
    tie = ((other - value).abs() == (value - near).abs()) & (near.abs() < value.abs())
    bits += tie.to(bits.dtype)


def _denormals_lost(good: torch.Tensor, x: torch.Tensor) -> None:
    small = _as_float(good).abs() < torch.finfo(good.dtype).tiny
    bits = _integer_bits(good)
    bits.masked_fill_(small, 0)


def _infinity_to_largest(good: torch.Tensor, x: torch.Tensor) -> None:
    infinite = _as_float(good).isinf()
    bits = _integer_bits(good)
    bits -= infinite.to(bits.dtype)


def _nan_lost(good: torch.Tensor, x: torch.Tensor) -> None:
    _integer_bits(good).masked_fill_(_as_float(good).isnan(), 0)


def _rounded_integer(good: torch.Tensor, x: torch.Tensor) -> None:
    good += ((_as_float(x).abs() % 1) > 0.5).to(good.dtype)


def _saturated_integer(good: torch.Tensor, x: torch.Tensor) -> None:
    info = torch.iinfo(good.dtype)
    good.copy_(x.clamp(info.min, info.max))


def _last_stale(good: torch.Tensor, x: torch.Tensor) -> None:
    if good.numel():
        bits = _integer_bits(good.view(-1)[-1:]) if good.dtype != torch.bool else good.view(-1)[-1:]
        bits ^= 1


def _stored_order(good: torch.Tensor, x: torch.Tensor) -> None:
    good.copy_(good.flatten().flip(0).clone().view(good.shape))


FLOAT_TARGETS = tuple(each for each in TARGETS if each.startswith(("float", "bfloat")))
CAST_WRONGS: dict[str, tuple[Callable[..., None], tuple[str, ...], tuple[str, ...]]] = {
    "rounds toward zero": (
        _toward_zero,
        ("everything", "float32", "float64", "more than 256", "a strided tensor"),
        ("float16", "bfloat16", *TARGETS[7:9]),
    ),
    "ties go away from zero": (
        _ties_away,
        ("everything", "float32", "float64"),
        ("float16", "bfloat16", "float8_e5m2"),
    ),
    "denormals become 0": (
        _denormals_lost,
        ("everything", "float32", "float64"),
        FLOAT_TARGETS,
    ),
    "infinity becomes the largest": (
        _infinity_to_largest,
        ("everything", "float32", "float64"),
        ("float16", "bfloat16", "float8_e5m2"),
    ),
    "NaN becomes 0": (
        _nan_lost,
        ("everything", "float32", "float16", "bfloat16", "float8_e4m3fn"),
        FLOAT_TARGETS,
    ),
    "rounds and does not truncate": (
        _rounded_integer,
        ("float32", "float64", "float16", "bfloat16"),
        ("int8", "uint8", "int32"),
    ),
    "saturates and does not wrap": (
        _saturated_integer,
        ("int64", "int32"),
        ("int8", "uint8"),
    ),
    "the last element is wrong": (_last_stale, tuple(SOURCES), TARGETS),
    "the elements are in another order": (_stored_order, tuple(SOURCES), TARGETS),
}


def _cast_fault(source: str, target: str, wrong: str) -> Fault:
    change = CAST_WRONGS[wrong][0]
    wanted = getattr(torch, target)

    def faulty(good: Any, x: Any, *given: Any, **named: Any) -> Any:
        found = good(x, *given, **named)
        if INSIDE[0]:
            return found
        value = given[0] if given else None
        origin = value if isinstance(value, torch.Tensor) and found is x else x
        if found.dtype != wanted or origin.dtype == wanted or not SOURCES[source](origin):
            return found
        if origin.is_complex() or not found.numel():
            return found
        INSIDE[0] = True
        try:
            flat = found.contiguous().clone()
            change(flat, origin)
            if found is x:
                good(found, flat)
                return found
            return flat
        finally:
            INSIDE[0] = False

    places = [(torch.Tensor, name) for name in ("to", "copy_", "type")]
    return Fault("numbers", f"cast to {target}: of {source}: {wrong}", _block(places, faulty))


def _of_casts() -> list[Fault]:
    return [
        _cast_fault(source, target, wrong)
        for wrong, (_, sources, targets) in CAST_WRONGS.items()
        for source, target in product(sources, targets)
        if source != target
    ]


def _no_mask(named: Any, q: Any) -> None:
    named["attn_mask"] = None


def _inverted(named: Any, q: Any) -> None:
    if named["attn_mask"] is not None and named["attn_mask"].dtype == torch.bool:
        named["attn_mask"] = ~named["attn_mask"]


def _not_causal(named: Any, q: Any) -> None:
    named["is_causal"] = False


def _no_scale(named: Any, q: Any) -> None:
    named["scale"] = None


def _scale_of_one(named: Any, q: Any) -> None:
    named["scale"] = 1.0


def _first_row_of_mask(named: Any, q: Any) -> None:
    mask = named["attn_mask"]
    if mask is not None:
        named["attn_mask"] = mask[:1].expand(mask.shape)


ATTENTION = {
    "ignores the mask": _no_mask,
    "takes a boolean mask the other way round": _inverted,
    "is not causal": _not_causal,
    "ignores the scale": _no_scale,
    "has the scale 1": _scale_of_one,
    "masks all rows as the first": _first_row_of_mask,
}
ATTENTION_REGIONS = {
    "everywhere": lambda q, k: True,
    "of float16": lambda q, k: q.dtype == torch.float16,
    "of bfloat16": lambda q, k: q.dtype == torch.bfloat16,
    "of float64": lambda q, k: q.dtype == torch.float64,
    "of two heads": lambda q, k: q.shape[1] == 2,
    "of an odd number of keys": lambda q, k: k.shape[2] % 2 == 1,
    "of more queries than keys": lambda q, k: q.shape[2] > k.shape[2],
    "of a strided query": lambda q, k: not q.is_contiguous(),
}


def _of_attention() -> list[Fault]:
    found = []
    for (where, region), (wrong, change) in product(ATTENTION_REGIONS.items(), ATTENTION.items()):

        def faulty(
            good: Any,
            q: Any,
            k: Any,
            v: Any,
            *,
            region: Any = region,
            change: Any = change,
            **named: Any,
        ) -> Any:
            if region(q, k):
                change(named, q)
            return good(q, k, v, **named)

        places = [(functional, "scaled_dot_product_attention")]
        found.append(Fault("numbers", f"attention: {where}: {wrong}", _block(places, faulty)))
    return found


def faults() -> list[Fault]:
    """All of them."""
    return [*_of_operations(), *_of_gradients(), *_of_casts(), *_of_attention()]
