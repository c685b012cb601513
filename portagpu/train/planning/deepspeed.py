"""The states of a training by DeepSpeed's own estimator, a second definition next to the paper's.

The paper (arXiv:1910.02054) keeps 16-bit gradients and no more than a share of them from stage 2
on. The estimator counts 32-bit gradients in addition, and for stage 3 what is gathered at once.
Source: DeepSpeed, ``runtime/zero/stage_1_and_2.py`` and ``stage3.py``, functions
``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_model_states_mem_needs``. Its
documentation (``memory.rst``) still shows stage 2 as it was before: 4 P + 16 P / GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

_BUFFERS = 1.5
"""``additional_buffer_factor`` of the host's memory."""


@dataclass(frozen=True, slots=True)
class DeepSpeedNeeds:
    """Bytes of states that DeepSpeed's estimator gives: of one GPU, and of one machine's host."""

    gpu: int
    host: int


def deepspeed_needs(
    parameters: int,
    *,
    stage: int,
    gpus: int,
    nodes: int = 1,
    offload: str = "none",
    largest: int = 0,
    zero_init: bool = True,
) -> DeepSpeedNeeds:
    """What DeepSpeed's estimator says of parameters, gradients and Adam's states in 16 bits.

    :param parameters: of the model.
    :param stage: of ZeRO: 2 or 3; the estimator has no other.
    :param gpus: of one machine.
    :param nodes: machines.
    :param offload: "none", "optimizer", or "parameters" (stage 3).
    :param largest: parameters of the largest module, for stage 3.
    :param zero_init: whether ``zero.Init`` makes the model sharded (stage 3).
    :returns: bytes of a GPU and of a host.
    :raises ValueError: for another stage, and for parameters that stage 2 cannot offload.
    """
    if stage not in (2, 3) or (stage == 2 and offload == "parameters"):
        raise ValueError("DeepSpeed estimates ZeRO 2 and 3, and offloads parameters with 3 alone")
    world = gpus * nodes
    made = 4 * gpus
    if stage == 2:
        if offload == "none":
            return _needs(2 * parameters + 18 * parameters // world, parameters * made)
        return _needs(2 * parameters, parameters * max(4 * world, 16))
    gathered = 4 * largest
    if offload == "none":
        on_host = (largest if zero_init else parameters) * made
        return _needs(gathered + 18 * parameters // world, on_host)
    each = (18 if offload == "parameters" else 16) / nodes
    gpu = gathered + (0 if offload == "parameters" else 2 * parameters // world)
    return _needs(gpu, parameters * (each if zero_init else max(made, each)))


def _needs(gpu: int, host: float) -> DeepSpeedNeeds:
    return DeepSpeedNeeds(gpu=int(gpu), host=int(host * _BUFFERS))
