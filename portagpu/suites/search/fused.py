"""One step of torch's fused optimizers on the device: scaled gradients, and steps that are skipped.

The formulas are those of ``torch.optim.SGD`` and ``AdamW`` where nothing is averaged or decayed: a
step against the gradient, or against its sign. A step with ``found_inf`` changes nothing (pytorch
v2.13.0, aten/src/ATen/native/cuda/fused_adam_utils.cuh and FusedSgdKernel.cu).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

FUSED: Final[Mapping[str, Sequence[Any]]] = {
    "kind": ("sgd", "adamw", "adam"),
    "scale": (4.0, 1.0, 1024.0),
    "infinite": (True, False),
    "seed": (0, 1, 2, 5),
}
"""The arguments of a step, and their values."""
RATE: Final = 0.5
CLOSE: Final = 2.0**-20
"""Of float32, for the root and the quotient that Adam rounds; steps of SGD are exact."""


def fused_step(run: Any, kind: str, scale: float, infinite: bool, seed: int) -> str:
    """What is wrong with a fused step on three parameters, as a clause; empty without a kernel.

    ``run`` is that of a program: its ``gpu`` takes the step, and its parameters take no part.
    """
    import torch

    signs = [1 - 2 * (seed >> k & 1) for k in range(3)]
    gradients = [torch.full((n,), 2.0 * sign) for n, sign in zip((1, 5, 70), signs, strict=True)]
    before = [torch.arange(1.0, 1 + len(each)) for each in gradients]
    right = [
        value if infinite else value - RATE * (gradient if kind == "sgd" else gradient.sign())
        for value, gradient in zip(before, gradients, strict=True)
    ]
    put = run.gpu.device
    parameters = [each.clone().to(put) for each in before]
    try:
        _step(kind, parameters, [(each * scale).to(put) for each in gradients], scale, infinite)
    except NotImplementedError:
        return ""
    for number, (found, wanted) in enumerate(zip(parameters, right, strict=True)):
        off = (found.cpu() - wanted).abs()
        wrong = ~(off <= (0 if kind == "sgd" or infinite else CLOSE * wanted.abs().clamp(min=1)))
        if bool(wrong.any()):
            place = int(wrong.int().argmax())
            how = "that was to be skipped" if infinite else f"of gradients times {scale:g}"
            return (
                f"a fused step of {kind} {how} gave {found[place].item():g} at element {place} of "
                f"parameter {number}, not {wanted[place].item():g}"
            )
    return ""


def _step(
    kind: str,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    scale: float,
    infinite: bool,
) -> None:
    import torch

    def one(value: float) -> torch.Tensor:
        return torch.tensor(float(value)).to(parameters[0].device)

    scaled: dict[str, Any] = {
        "grad_scale": one(scale),
        "found_inf": one(infinite),
        "maximize": False,
    }
    if kind == "sgd":
        torch._fused_sgd_(
            parameters, gradients, [], lr=RATE, weight_decay=0.0, momentum=0.0, dampening=0.0,
            nesterov=False, is_first_step=True, **scaled,
        )  # fmt: skip
        return
    call: Any = torch._fused_adamw_ if kind == "adamw" else torch._fused_adam_
    zeros = [[torch.zeros_like(each) for each in parameters] for _ in range(2)]
    call(
        parameters, gradients, *zeros, [], [one(1.0) for _ in parameters], lr=RATE, beta1=0.0,
        beta2=0.0, weight_decay=0.0, eps=0.0, amsgrad=False, **scaled,
    )  # fmt: skip
