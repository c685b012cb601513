"""Who started this rank, and what that launcher says of it, from the environment alone.

Sources: torch's elastic agent (``torch/distributed/run.py``), ``srun(1)`` under "OUTPUT ENVIRONMENT
VARIABLES", ``mpirun(1)`` of Open MPI, Hydra's ``mpiexec`` (PMI and ``MPI_LOCALRANKID``).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT: Final = 29500
"""torchrun's, where neither MASTER_PORT nor a job's number is there."""
_FIRST_PORT: Final = 20000
_PORTS: Final = 9500
"""Below the ports that Linux gives to outgoing connections, which begin at 32768."""


@dataclass(frozen=True, slots=True)
class _Variables:
    """The names under which one launcher states a rank; the first that is set counts."""

    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: str
    local_world_size: str


_TORCHRUN: Final = _Variables("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM: Final = _Variables(
    "Slurm",
    "SLURM_PROCID",
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    "SLURM_LOCALID",
    "",
)
_LAUNCHERS: Final = (
    # the innermost first: torchrun and mpirun are started inside a job of Slurm, not around it
    _TORCHRUN,
    *(
        _Variables(name, f"{word}_RANK", (f"{word}_SIZE",), local_rank, local_world_size)
        for name, word, local_rank, local_world_size in (
            (
                "Open MPI",
                "OMPI_COMM_WORLD",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ),
            (
                "MVAPICH",
                "MV2_COMM_WORLD",
                "MV2_COMM_WORLD_LOCAL_RANK",
                "MV2_COMM_WORLD_LOCAL_SIZE",
            ),
            ("MPI", "PMI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        )
    ),
    _SLURM,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This rank among the others, as far as its launcher or the caller says; None is not known."""

    launcher: str
    """ "torchrun" (also for its variables set by hand), "Open MPI", "MVAPICH", "MPI" (PMI: MPICH
    and its kin), "Slurm", "alone" or "arguments"."""
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    address: str | None = None
    """Of the machine of rank 0."""
    port: int = DEFAULT_PORT
    job: str = ""
    """The same on all ranks of one job, and another one in other jobs; empty where none is."""
    agent_holds_store: bool = False
    """Whether the launcher, and not rank 0, holds the store at ``address``."""
    hint: str = ""
    """What to do where ranks are missing, in addition to looking at them."""


def place_of_rank(
    environment: Mapping[str, str], rank: int | None = None, world_size: int | None = None
) -> Place:
    """This rank's place; ``rank`` and ``world_size`` count before what the launcher says.

    Without a launcher and without arguments the rank is alone. Raises CollectiveError for variables
    that are incomplete or contradict themselves, and ValueError for arguments that do.
    """
    if rank is not None and world_size is not None:
        _check_rank(rank, world_size, "rank", "world_size", ValueError)
        stated = Place(launcher="arguments", rank=rank, world_size=world_size)
        return _completed(environment, stated, _lenient(environment))
    found = [each for names in _LAUNCHERS if (each := _read(environment, names)) is not None]
    if not found:
        if rank is not None or world_size is not None:
            raise ValueError("give both rank and world_size: no launcher states the other one")
        return Place(launcher="alone", rank=0, world_size=1, local_rank=0, local_world_size=1)
    stated = replace(
        found[0],
        rank=found[0].rank if rank is None else rank,
        world_size=found[0].world_size if world_size is None else world_size,
    )
    _check_rank(stated.rank, stated.world_size, "rank", "world_size", ValueError)
    return _completed(environment, stated, found)


def local_rank(environment: Mapping[str, str]) -> tuple[int, int | None] | None:
    """(this rank's number on its machine, ranks there or None) as a launcher says; else None.

    Raises nothing: variables that are wrong are :func:`place_of_rank`'s to report.
    """
    for found in _lenient(environment):
        number = found.local_rank
        if number is not None:
            among = found.local_world_size
            return None if among is not None and number >= among else (number, among)
    return None


def stated_rank(environment: Mapping[str, str]) -> int | None:
    """The rank that the innermost launcher states, with or without a number of ranks; else None."""
    texts = (environment.get(names.rank, "") for names in _LAUNCHERS)
    return next((int(each) for each in texts if each.isdecimal()), None)


def first_host(node_list: str) -> str:
    """The first host of Slurm's list: "node[07-09,12]-ib,login1" is "node07-ib".

    It is what ``scontrol show hostnames`` prints first. Raises ValueError for another form.
    """
    parts = re.findall(r"\[([^\[\]]*)\]|([^\[\],]+)|(,)", node_list)
    if "".join(f"[{ranges}]" if ranges else text + comma for ranges, text, comma in parts) != (
        node_list
    ):
        raise ValueError(f"{node_list!r} is not a list of hosts")
    host = ""
    for ranges, text, comma in parts:
        if comma:
            break
        host += text or re.split(r"[-,]", ranges)[0]
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise ValueError(f"{node_list!r} is not a list of hosts")
    return host


def _lenient(environment: Mapping[str, str]) -> list[Place]:
    found = []
    for names in _LAUNCHERS:
        try:
            place = _read(environment, names)
        except CollectiveError:
            continue
        if place is not None:
            found.append(place)
    return found


def _read(environment: Mapping[str, str], names: _Variables) -> Place | None:
    """What one launcher's variables say; None without them. Raises CollectiveError."""
    sizes = [name for name in names.world_size if environment.get(name)]
    has_rank = bool(environment.get(names.rank))
    if names is _TORCHRUN and has_rank != bool(sizes):
        there, missing = (names.rank, "WORLD_SIZE") if has_rank else ("WORLD_SIZE", names.rank)
        raise CollectiveError(f"{there} is set and {missing} is not: set both, or neither")
    if not has_rank or not sizes:
        # a batch script of Slurm has a rank and no size; others leave parts of theirs to children
        return None
    rank, world_size = _number(environment, names.rank), _number(environment, sizes[0])
    _check_rank(rank, world_size, names.rank, sizes[0], CollectiveError)
    hint = ""
    if names is _SLURM and not environment.get("SLURM_STEP_ID"):
        hint = "no srun started this process: start the ranks with srun"
    return Place(
        launcher=names.launcher,
        rank=rank,
        world_size=world_size,
        local_rank=_optional_number(environment, names.local_rank),
        local_world_size=_optional_number(environment, names.local_world_size),
        agent_holds_store=names is _TORCHRUN
        and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        hint=hint,
    )


def _completed(environment: Mapping[str, str], stated: Place, found: list[Place]) -> Place:
    """``stated`` with what the launchers that agree with it say of the rest."""
    same = [
        each for each in found if (each.rank, each.world_size) == (stated.rank, stated.world_size)
    ]
    for each in same:
        if stated.local_rank is None:
            stated = replace(
                stated, local_rank=each.local_rank, local_world_size=each.local_world_size
            )
    in_slurm = any(each.launcher == "Slurm" for each in same)
    address = environment.get("MASTER_ADDR")
    if not address and in_slurm:
        address = _address_in_slurm(environment)
    if not address and stated.local_world_size == stated.world_size:
        address = "127.0.0.1"
    job = _job(environment, in_slurm)
    port = _optional_number(environment, "MASTER_PORT")
    if port is None:
        port = _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if job else DEFAULT_PORT
    elif not 0 < port < 1 << 16:
        raise CollectiveError(f"MASTER_PORT is a port from 1 to 65535, not {port}")
    return replace(stated, address=address or None, port=port, job=job)


def _job(environment: Mapping[str, str], in_slurm: bool) -> str:
    if environment.get("TORCHELASTIC_RUN_ID") and environment.get("RANK"):
        return f"torchrun {environment['TORCHELASTIC_RUN_ID']}"
    if environment.get("SLURM_JOB_ID"):
        # mpirun starts a step on each machine, with a number of its own
        step = environment.get("SLURM_STEP_ID", "") if in_slurm else ""
        return f"Slurm {environment['SLURM_JOB_ID']}.{step}"
    name = environment.get("PMIX_NAMESPACE")
    return f"PMIx {name}" if name else ""


def _address_in_slurm(environment: Mapping[str, str]) -> str | None:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            try:
                return first_host(environment[name])
            except ValueError as error:
                raise CollectiveError(
                    f"{name} cannot be read, {error}: set MASTER_ADDR to the host of rank 0"
                ) from None
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise CollectiveError(f"{name} is a number from 0, not {text!r}")
    return int(text)


def _optional_number(environment: Mapping[str, str], name: str) -> int | None:
    return _number(environment, name) if environment.get(name) else None


def _check_rank(
    rank: int, world_size: int, rank_name: str, size_name: str, error: type[Exception]
) -> None:
    for name, value in ((rank_name, rank), (size_name, world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is an int, not {value!r}")
    if not 0 <= rank < world_size:
        numbered = (
            f"ranks are numbered from 0 to {world_size - 1}" if world_size > 0 else "no ranks"
        )
        raise error(f"{rank_name} is {rank} and {size_name} is {world_size}: {numbered}")
