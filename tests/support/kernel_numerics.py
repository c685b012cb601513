"""Run every kernel in Triton's interpreter and print what differs from its oracle, as JSON.

Started by test_kernels.py with TRITON_INTERPRET=1: the interpreter is chosen when triton is
imported. Each line of the answer is {"case": ..., "problem": "" or what is wrong}.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings

import torch

from portagpu.train import kernels
from portagpu.train.kernels import reference
from portagpu.train.kernels.by_unit import product_by_unit

SEED = 20261121
SHAPES = [(0,), (1,), (7,), (3, 0), (0, 3), (1, 1), (3, 1000), (1, 2048), (1, 2049), (1, 2, 4500)]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
OCP = [torch.float8_e4m3fn, torch.float8_e5m2]
FNUZ = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FP8 = [*OCP, *FNUZ]
SUMMED = [*FLOATS, torch.float64, torch.int8, torch.int32, torch.int64]
COPIED = [*SUMMED, *FP8, torch.bool, torch.complex64]
PRODUCTS = [(1, 1, 1), (0, 3, 4), (3, 0, 4), (3, 4, 0), (16, 16, 16), (17, 33, 65), (130, 129, 200)]


def main() -> None:
    if not knows_fnuz():
        FP8[:] = OCP
        print(json.dumps({"case": "without-fnuz", "problem": ""}))
    for name, check in CHECKS.items():
        for case, problem in check():
            print(json.dumps({"case": f"{name}[{case}]", "problem": problem}), flush=True)


def knows_fnuz():
    """Whether this interpreter has the FNUZ formats: that of Triton 3.7 does not."""
    errors = importlib.import_module("triton.runtime.errors")
    try:
        kernels.quantize_fp8(torch.ones(1), torch.float8_e4m3fnuz)
    except errors.InterpreterError as error:
        if "fail to convert fp8e4b8" not in str(error):
            raise
        return False
    return True


def values(shape, dtype, generator):
    if dtype.is_complex or dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if not dtype.is_floating_point:
        top = min(torch.iinfo(dtype).max, 2**40)
        return torch.randint(-top, top, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def difference(got, exact, bound):
    """What lies outside of the bound, or nothing.

    Triton 3.9's interpreter cuts fp32 off to bf16 instead of rounding: an error of one step of the
    format where a device makes half a step.
    """
    if got.shape != exact.shape:
        return f"the shape is {tuple(got.shape)}, not {tuple(exact.shape)}"
    if got.dtype is torch.bfloat16:
        bound = bound + exact.abs() * torch.finfo(torch.bfloat16).eps / 2
    error = (got.double() - exact.double()).abs()
    wrong = ~(error <= bound)
    if not wrong.any():
        return ""
    where = int(wrong.flatten().nonzero()[0])
    return (
        f"{int(wrong.sum())} of {got.numel()} differ, the first by "
        f"{error.flatten()[where]:.3g}, bound {bound.flatten()[where]:.3g}"
    )


def check_copy():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in COPIED:
        for shape in SHAPES:
            x = values(shape, dtype, generator)
            got = kernels.copy(x)
            same = x.dtype is got.dtype and x.shape == got.shape and bytes_of(x) == bytes_of(got)
            yield f"{dtype},{shape}", "" if same else "the bytes differ"


def bytes_of(x):
    return x.contiguous().view(-1).view(torch.uint8).tolist() if x.numel() else []


def check_triad():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in FLOATS:
        for shape in SHAPES:
            b, c = values(shape, dtype, generator), values(shape, dtype, generator)
            exact = reference.triad(b, c, -1.7)
            bound = reference.triad_bound(b, c, -1.7)
            yield f"{dtype},{shape}", difference(kernels.triad(b, c, -1.7), exact, bound)


def check_sum():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in SUMMED:
        for shape in [*SHAPES, (3_000_000,)]:
            x = values(shape, dtype, generator)
            got = kernels.sum(x)
            if dtype.is_floating_point:
                problem = difference(got, reference.sum(x), reference.sum_bound(x))
            else:
                problem = "" if got == x.sum() and got.dtype is torch.int64 else f"{got} {x.sum()}"
            again = kernels.sum(x)
            yield f"{dtype},{shape}", problem or ("" if got == again else "another sum each time")


def check_softmax():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in FLOATS:
        for shape in SHAPES:
            for scale in (1, 30):
                x = values(shape, dtype, generator) * scale
                exact, bound = reference.softmax(x), reference.softmax_bound(x)
                case = f"{dtype},{shape},x{scale}"
                yield case, difference(kernels.softmax(x), exact, bound)


def check_rms_norm():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in FLOATS:
        for shape in SHAPES:
            x = values(shape, dtype, generator)
            w = values(shape[-1:], torch.float32, generator)
            exact, bound = reference.rms_norm(x, w, 1e-5), reference.rms_norm_bound(x, w, 1e-5)
            yield f"{dtype},{shape}", difference(kernels.rms_norm(x, w, 1e-5), exact, bound)


ADAMW = [
    {"step": 1, "lr": 1e-3},
    {"step": 3, "lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.0},
    {"step": 2, "lr": 0.5, "betas": (0.0, 0.3), "eps": 1e-3, "weight_decay": 0.25},
    {"step": 10**6, "lr": 1e-4, "betas": (0.95, 0.9999), "weight_decay": 0.1},
]


def check_adamw_step():
    """Each is in the middle of a buffer, whose ends must stay."""
    generator = torch.Generator().manual_seed(SEED)
    for dtype in FLOATS:
        for shape in SHAPES:
            for settings in ADAMW:
                parameter, gradient, average, square = (
                    values(shape, each, generator)
                    for each in (dtype, dtype, torch.float32, torch.float32)
                )
                # from subnormal squares on
                spread = 10 ** (torch.rand(shape, generator=generator) * 24 - 24)
                if settings["step"] == 1:
                    average, square = average * 0, square * 0
                given = (parameter, gradient, average * spread, (square * spread) ** 2)
                buffers = [torch.full((each.numel() + 128,), 7.0).to(each.dtype) for each in given]
                inner = [each[64:-64].view(shape) for each in buffers]
                for each, start in zip(inner, given, strict=True):
                    each.copy_(start)
                kernels.adamw_step(*inner, **settings)
                exact = reference.adamw_step(*given, **settings)
                bound = reference.adamw_step_bound(*given, **settings)
                found = (inner[0], *inner[2:])
                problems = [difference(*each) for each in zip(found, exact, bound, strict=True)]
                if not torch.equal(inner[1], gradient):
                    problems.append("the gradient was changed")
                if any((each[part] != 7).any() for each in buffers for part in ENDS):
                    problems.append("something outside the ends was written")
                yield f"{dtype},{shape},{settings['step']}", "; ".join(filter(None, problems))


ENDS = (slice(None, 64), slice(-64, None))


def check_adamw_step_as_torch():
    """Twenty steps next to torch's fused AdamW, and a gradient that is not finite."""
    generator = torch.Generator().manual_seed(SEED)
    start = values((5000,), torch.float32, generator)
    for decay in (0.0, 0.1):
        theirs = start.clone().requires_grad_()
        optimiser = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=decay, fused=True)
        ours = [start.clone(), torch.zeros(5000), torch.zeros(5000)]
        for step in range(1, 21):
            theirs.grad = values((5000,), torch.float32, generator)
            if step == 20:
                theirs.grad[[0, 1, 2, -1]] = torch.tensor([float("nan"), math.inf, -math.inf, 0])
            optimiser.step()
            kernels.adamw_step(
                *(ours[0], theirs.grad, *ours[1:]), step=step, lr=1e-2, weight_decay=decay
            )
        state = optimiser.state[theirs]
        named = {"parameter": theirs.detach(), **{k: state[k] for k in ("exp_avg", "exp_avg_sq")}}
        for (name, right), found in zip(named.items(), ours, strict=True):
            # a thousandth of a step of the optimiser
            same = torch.allclose(found, right, rtol=1e-4, atol=1e-5, equal_nan=True)
            yield f"{name},{decay}", "" if same else "not what torch gives"
        lost = ours[0].isnan().nonzero().flatten().tolist()
        yield f"nan,{decay}", "" if lost == [0, 1, 2] else f"NaN at {lost}"


def check_adamw_step_and_autograd():
    weight = torch.ones(3, requires_grad=True)
    squared = (weight * weight).sum()
    with torch.no_grad():
        kernels.adamw_step(weight, torch.ones(3), torch.zeros(3), torch.zeros(3), step=1)
    try:
        squared.backward()
    except RuntimeError as error:
        yield "backward", "" if "modified by an inplace operation" in str(error) else str(error)
    else:
        yield "backward", "a gradient was computed from values that are gone"


def check_not_finite():
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[1.0, nan], [nan, 1.0], [inf, 0.0], [-inf, -inf], [0.0, -inf]])
    for columns in (2, 5000):
        x = torch.zeros(rows.shape[0], columns)
        x[:, [0, -1]] = rows
        if columns > 2:
            x[3] = -inf
        expected = torch.softmax(x, -1)
        same = torch.allclose(kernels.softmax(x), expected, equal_nan=True)
        yield f"softmax,{columns}", "" if same else "not what torch gives"
        norm = kernels.rms_norm(x[:2], torch.ones(columns))
        yield f"rms_norm,{columns}", "" if norm.isnan().all() else "a NaN was lost"
        _, scales = kernels.quantize_fp8(x, torch.float8_e5m2)
        lost = "" if scales[:2].isnan().all() and not scales[2:].isnan().any() else f"{scales}"
        yield f"quantize_fp8,{columns}", lost
    nans = torch.tensor([0.0, nan])
    yield "sum", "" if kernels.sum(nans).isnan() else "a NaN was lost"


def check_quantize():
    generator = torch.Generator().manual_seed(SEED)
    for dtype in FP8:
        for source in FLOATS:
            for shape in SHAPES:
                x = values(shape, source, generator)
                got, scale = kernels.quantize_fp8(x, dtype)
                want, exact = reference.quantize_fp8(x, dtype)
                case = f"{dtype},{source},{shape}"
                if not torch.equal(scale, exact):
                    yield case, f"the scales differ: {scale} {exact}"
                    continue
                # Triton 3.9's interpreter loses the carry where rounding up reaches a power of two,
                # and cuts subnormals off instead of rounding them
                ours, torchs = got.float(), want.float()
                carried = (ours * 2 == torchs) & (torch.frexp(torchs)[0].abs() == 0.5)
                info = torch.finfo(dtype)
                step = info.smallest_normal * info.eps
                cut = (torchs.abs() <= info.smallest_normal) & (torchs.abs() - ours.abs() == step)
                # as near as torch's is right: the interpreter rounds a tie up, torch to even
                quotient = x.float() / exact.unsqueeze(-1)
                further = (ours - quotient).abs() > (torchs - quotient).abs()
                wrong = further & ~carried & ~cut
                yield case, f"{int(wrong.sum())} values differ" if wrong.any() else ""


def check_quantize_without_cast():
    """The same kernel into fp32, where no cast hides what it computed."""
    kernel = importlib.import_module("portagpu.train.kernels.source.rows").quantise_kernel
    generator = torch.Generator().manual_seed(SEED)
    for limit, dtype in ((448.0, torch.float8_e4m3fn), (240.0, torch.float8_e4m3fnuz)):
        x = values((4, 5000), torch.float32, generator) * torch.tensor([[0.0], [1e-6], [1], [1e6]])
        target, scales = torch.empty_like(x), torch.empty(4)
        kernel[(4,)](x, target, scales, 5000, limit, 5000, 5000, BLOCK=2048)
        _, exact = reference.quantize_fp8(x, dtype)
        same = torch.equal(target, (x / exact[:, None]).clamp(-limit, limit))
        top = target.abs().amax(-1)
        full = torch.allclose(top[1:], torch.full((3,), limit)) and top[0] == 0
        yield f"{dtype}", "" if same and full else f"quotients differ: {top}"
        error = (want_of(x, dtype) - x.double()).abs()
        outside = ~(error <= reference.quantize_fp8_bound(x, dtype))
        yield f"bound,{dtype}", f"{int(outside.sum())} outside" if outside.any() else ""


def want_of(x, dtype):
    """What torch's own cast keeps of ``x``: the bound has to hold for it."""
    quantised, scale = reference.quantize_fp8(x, dtype)
    return quantised.double() * scale.double()[:, None]


def check_matmul():
    generator = torch.Generator().manual_seed(SEED)
    # bfloat16 is left out: Triton 3.9's interpreter multiplies its bits as integers
    for dtype in (torch.float16, *FP8, torch.int8):
        for m, n, k in PRODUCTS:
            for across in (False, True):
                a = values((m, k), dtype, generator)
                b = (
                    values((n, k), dtype, generator).T
                    if across
                    else values((k, n), dtype, generator)
                )
                got = kernels.matmul(a, b)
                exact, bound = reference.matmul(a, b), reference.matmul_bound(a, b)
                case = f"{dtype},{m}x{n}x{k},{'column' if across else 'row'}"
                yield case, difference(got, exact, bound)


def check_product_by_unit():
    """Products of integers are exact: every copy has to have every bit."""
    generator = torch.Generator().manual_seed(SEED)
    for dtype in (torch.float16, torch.float32, torch.int8):
        for m, n, k in ((1, 1, 1), (65, 33, 17), (131, 129, 200)):
            a, b = (
                torch.randint(-63, 64, shape, generator=generator) for shape in ((m, k), (k, n))
            )
            for layout in ("kn", "kk", "mn"):
                left = a.to(dtype) if layout[0] == "k" else a.to(dtype).T.contiguous().T
                right = b.to(dtype) if layout[1] == "n" else b.to(dtype).T.contiguous().T
                made = product_by_unit(left, right, None, copies=2, shift=3)
                same = bool((made.results.long() == a @ b).all()) and made.results.shape[0] == 2
                tiles = made.units.shape == (2, -(-m // made.tile[0]), -(-n // made.tile[1]))
                problem = "" if same and tiles else "a copy is not the exact product"
                yield f"{dtype},{m}x{n}x{k},{layout}", problem


CHECKS = {
    "copy": check_copy,
    "triad": check_triad,
    "sum": check_sum,
    "softmax": check_softmax,
    "rms_norm": check_rms_norm,
    "adamw_step": check_adamw_step,
    "adamw_step-as-torch": check_adamw_step_as_torch,
    "adamw_step-and-autograd": check_adamw_step_and_autograd,
    "not-finite": check_not_finite,
    "quantize_fp8": check_quantize,
    "quantize_fp8-fp32": check_quantize_without_cast,
    "matmul": check_matmul,
    "product_by_unit": check_product_by_unit,
}

if __name__ == "__main__":
    # NumPy, which the interpreter computes with, warns of what IEEE 754 defines
    warnings.simplefilter("ignore", RuntimeWarning)
    main()
