"""Checkpoints that are whole or absent, and load on another number of ranks.

``torch.distributed.checkpoint`` writes and reads them. Each is a folder ``step-N`` in a folder that
all ranks see. It is written under another name, which the first rank changes when every rank has
written all of its part.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.errors import PortagpuError
from portagpu.base.files import why_not_trusted, write_atomic
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    Models = nn.Module | Sequence[nn.Module]
    Optimizers = Optimizer | Sequence[Optimizer]

_NAME: Final = re.compile(r"step-(0|[1-9][0-9]{0,14})")
_ABOUT: Final = "portagpu.json"
_SCHEMA: Final = "portagpu.checkpoint/1"
_ZERO_AT_FIRST: Final = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
"""What torch's Adam, AdamW and SGD begin with as 0."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a checkpoint has in addition to tensors."""

    step: int
    world_size: int
    """The ranks that wrote it."""
    extra: dict[str, Any]
    path: Path


def latest(folder: str | os.PathLike[str]) -> int | None:
    """The step of the newest whole checkpoint in ``folder``; None without one."""
    try:
        inside = [*Path(folder).iterdir()]
    except FileNotFoundError:
        return None
    named = [(match, each) for each in inside if (match := _NAME.fullmatch(each.name))]
    return max((int(match[1]) for match, each in named if (each / _ABOUT).is_file()), default=None)


def save(
    folder: str | os.PathLike[str],
    step: int,
    model: Models,
    optimizer: Optimizers,
    *,
    extra: Mapping[str, Any] | None = None,
    mesh: DeviceMesh | None = None,
) -> Path:
    """Write the checkpoint of ``step`` to ``folder``/step-N, and return its path.

    Every rank calls it, after ``optimizer.step()``, and it returns when all of it is on the disk.
    A process that is killed leaves the earlier checkpoints as they were. If an error is raised,
    nothing of the step is left.

    :param folder: a folder that all ranks see
    :param step: a whole number, the same on every rank
    :param model: one or several modules: sharded, split, wrapped by DDP, or parts of a pipeline
    :param optimizer: one for each module
    :param extra: JSON, of the first rank: the scaler's and the learning rate's ``state_dict()``, a
        place in the data
    :param mesh: the mesh, to compare the names of a pipeline's stages first
    :returns: the path of the checkpoint
    :raises FileExistsError: for a step that exists
    :raises ValueError: for two stages with a parameter of one name, ranks with different steps or
        folders, and an ``extra`` that is not JSON
    :raises PortagpuError: on every rank, for what one of them cannot write
    """
    from torch.distributed.checkpoint.state_dict_saver import save as write

    home = Path(folder)
    path, partial = home / f"step-{step}", home / f".step-{step}.partial"
    text = _about(step, extra, home)
    state = _state(model, optimizer)
    if mesh is not None and mesh["pp"].size() > 1:
        _check_names([*state["model"]], mesh["pp"])

    def begin() -> None:
        if path.is_symlink() or path.exists():
            raise FileExistsError(f"{path} exists: load it, or remove it")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def finish() -> None:
        write_atomic(partial / _ABOUT, text)
        _sync(partial)
        partial.rename(path)
        _sync(home)

    _on_first(begin)
    try:
        with _plain(f"write {partial}"):
            write(state, checkpoint_id=partial)
        _on_first(finish)
    except (PortagpuError, OSError):
        # every rank raises it and has ended its part: a full disk is not left full
        if _rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return path


def load(
    folder: str | os.PathLike[str],
    model: Models,
    optimizer: Optimizers,
    *,
    step: int | None = None,
) -> Loaded | None:
    """Load the newest checkpoint of ``folder``, or that of ``step``.

    Every rank calls it. Ranks, shards and stages may be others than those that wrote: each rank
    reads what it needs. Gradients are dropped. Parameters that only the checkpoint has are left
    out. torch reads parts of a checkpoint with pickle, which can run code: load only what you
    wrote. A folder that other users may write is refused.

    :param folder: the folder that :func:`save` wrote to
    :param model: one or several modules, as for :func:`save`
    :param optimizer: one for each module
    :param step: the step to load; by default the newest
    :returns: the step and ``extra``; None if there is no checkpoint
    :raises FileNotFoundError: for a step that is not there
    :raises ValueError: for an optimiser of other parameters
    :raises PortagpuError: for a folder that is not trusted, a damaged file, and parameters that the
        checkpoint lacks. A model may then be loaded in part
    """
    from torch.distributed.checkpoint.state_dict_loader import load as read

    def choose() -> Loaded | None:
        chosen = latest(folder) if step is None else step
        if chosen is None:
            return None
        path = Path(folder) / f"step-{chosen}"
        if not path.is_dir():
            raise FileNotFoundError(f"no checkpoint at {path}")
        for each in sorted(path.iterdir()):
            problem = why_not_trusted(each.absolute())
            if problem:
                raise PortagpuError(f"{path} is not read, because reading runs code: {problem}")
        try:
            about = json.loads((path / _ABOUT).read_text("utf-8"))
            if about["schema"] != _SCHEMA:
                raise PortagpuError(
                    f"{path} is of schema {about['schema']}, and this reads {_SCHEMA}"
                )
            saved, world, extra = (about[name] for name in ("step", "world_size", "extra"))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PortagpuError(
                f"{path / _ABOUT} cannot be read: load another step ({error_line(error)})"
            ) from None
        return Loaded(step=saved, world_size=world, extra=extra, path=path)

    found = _on_first(choose)
    if found is None:
        return None
    models, optimizers = _pairs(model, optimizer)
    for each in optimizers:
        # with gradients torch would not make the state that is loaded into
        each.zero_grad(set_to_none=True)
    state = _state(models, optimizers)
    with _plain(f"read {found.path}"):
        read(state, checkpoint_id=found.path)
    _put(state, models, optimizers)
    return found


def _pairs(model: Models, optimizer: Optimizers) -> tuple[Sequence[nn.Module], Sequence[Optimizer]]:
    from torch import nn
    from torch.optim import Optimizer

    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if len(models) != len(optimizers):
        raise ValueError(f"{len(models)} models have {len(optimizers)} optimisers: give one each")
    return models, optimizers


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    # stages differ in their groups of parameters: flat, each parameter has its own settings
    return StateDictOptions(flatten_optimizer_state_dict=True)


def _state(model: Models, optimizer: Optimizers) -> dict[str, dict[str, Any]]:
    """All parts' state by the names of the whole model."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
    for each, its in zip(*_pairs(model, optimizer), strict=True):
        known = {id(parameter) for parameter in each.parameters()}
        if any(id(one) not in known for group in its.param_groups for one in group["params"]):
            raise ValueError(
                "an optimiser has parameters that its model has not: make it after shard and split"
            )
        begun = bool(its.state)
        parameters, settings = get_state_dict(each, its, options=_options())
        if not begun:
            _reset(its)
        both = parameters.keys() & state["model"].keys()
        if both:
            raise ValueError(f"two parts of the model have a parameter {min(both)}")
        state["model"].update(parameters)
        state["optimizer"].update(settings)
    return state


def _reset(optimizer: Optimizer) -> None:
    """Set a new state to that before the first step, also in state dicts, which share it.

    torch makes the state by a step without gradients. Adam counts it, and decay of weights goes
    into its averages (pytorch/pytorch#164929).
    """
    import torch

    for each in optimizer.state.values():
        for name in _ZERO_AT_FIRST:
            if isinstance(each.get(name), torch.Tensor):
                each[name].zero_()


def _put(
    state: dict[str, dict[str, Any]], models: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> None:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_state_dict

    for each, its in zip(models, optimizers, strict=True):
        names = get_model_state_dict(each).keys()
        set_state_dict(
            each,
            its,
            model_state_dict={name: state["model"][name] for name in names},
            optim_state_dict=state["optimizer"],
            options=_options(),
        )


def _about(step: int, extra: Mapping[str, Any] | None, folder: Path) -> str:
    """A checkpoint's JSON text. Raises ValueError on every rank for what one of them refuses."""
    import torch.distributed as dist

    text, problem = "", ""
    if not isinstance(step, int) or isinstance(step, bool) or not _NAME.fullmatch(f"step-{step}"):
        problem = f"a step is a whole number from 0 to {10**15 - 1}, not {step!r}"
    elif _rank() == 0:
        try:
            about = {"schema": _SCHEMA, "step": step, "world_size": _world()}
            text = json.dumps({**about, "extra": dict(extra or {})}, allow_nan=False)
        except (TypeError, ValueError) as error:
            problem = f"extra must be JSON: {error}"
    found = [(problem, f"step {step!r} in {folder}")]
    if dist.is_initialized():
        found *= dist.get_world_size()
        dist.all_gather_object(found, (problem, f"step {step!r} in {folder}"))
    for rank, (wrong, place) in enumerate(found):
        if wrong:
            raise ValueError(wrong)
        if place != found[0][1]:
            raise ValueError(
                f"rank {rank} saves {place}, and rank 0 {found[0][1]}: give the same on all ranks"
            )
    return text


def _check_names(names: Sequence[str], stages: DeviceMesh) -> None:
    """Raise ValueError on every rank of a pipeline where two of its stages share a name."""
    import torch

    from portagpu.devices.collectives.helpers import all_gather_uneven

    mine = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    gathered = all_gather_uneven(mine.to(stages.device_type), stages.get_group())
    seen: set[str] = set()
    for each in gathered:
        theirs = set(json.loads(bytes(each.cpu().tolist())))
        both = seen & theirs
        if both:
            raise ValueError(
                f"two stages have a parameter {min(both)}, and one would replace the other: "
                "cut the model with portagpu.parallel.split, which keeps names"
            )
        seen |= theirs


def _world() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def _on_first(work: Callable[[], _T]) -> _T:
    """What ``work`` returns on the first rank, on all of them; raises its error on all."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return work()
    answer: list[Any] = [None, None]
    if _rank() == 0:
        try:
            answer[0] = work()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            answer[1] = error
    dist.broadcast_object_list(answer)
    if answer[1] is not None:
        raise answer[1]
    result: _T = answer[0]
    return result


@contextmanager
def _plain(work: str) -> Iterator[None]:
    """A block of torch's, which warns of a single process and fails with every rank's trace."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
            yield
    except CheckpointException as error:  # a BaseException
        rank, (cause, _) = min(error.failures.items())
        why = error_line(cause)
        if type(cause).__name__ in ("EOFError", "UnpicklingError") or "metadata is None" in why:
            # torch's words advise to read it in a way that runs code
            why = "a file is damaged"
        raise PortagpuError(f"rank {rank} cannot {work}: {why}") from error


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
