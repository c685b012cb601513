"""The communication library of a device, and torch's name for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import Unsupported

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

    from portagpu.devices.collectives.algorithms import TunedGroup
    from portagpu.devices.collectives.annotated import CollectiveMarks
    from portagpu.devices.collectives.checked import CheckedGroup
    from portagpu.devices.collectives.choice import Choice
    from portagpu.devices.collectives.cost import CostModel, Fit
    from portagpu.devices.collectives.init import Membership
    from portagpu.devices.collectives.tuning import Machine, Profile, Stack
    from portagpu.facts.targets import Target


@dataclass(frozen=True, slots=True)
class Comm:
    """The identity of a device's communication library.

    ``c10d_name`` is its name in ``torch.distributed``, which does not identify the vendor: RCCL is
    "nccl" there too. ``library`` and ``version`` name the actual library; an unknown version is
    None. A device without a library has :meth:`none`: calls that need one raise Unsupported.
    """

    c10d_name: str
    library: str
    version: str | None
    device_type: str
    """The type of ``torch.device`` of the tensors that it moves."""
    reduce_ops: frozenset[str] = frozenset()
    """Names of ``torch.distributed.ReduceOp`` that it supports for floating-point tensors.

    torch's own group answers to any other: it may refuse it, and nothing here does.
    """
    local_env: Mapping[str, str] | None = None
    """Environment for ranks on this machine alone, for instance the loopback interface."""
    device_ids: Sequence[int] | None = None
    """``device_ids`` for DistributedDataParallel and ``barrier``; None on a CPU.

    It is a list: ``torch.distributed.barrier`` reads no other sequence.
    """

    engines: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Words for the classes of torch that ``c10d_name`` may stand for, by the class's name."""
    engine_variables: Sequence[str] = field(default=(), repr=False, compare=False)
    """Environment variables by which torch chooses between them."""
    _gpu: Any = field(default=None, repr=False, compare=False)
    """The opened device, a ``Backend``, which states the rest; None until it is opened."""

    @classmethod
    def none(cls, device_type: str) -> Comm:
        """The Comm of a device without a communication library."""
        return cls("", "none", None, device_type)

    def _need_library(self) -> None:
        if not self.c10d_name:
            raise Unsupported(
                f"no communication library moves {self.device_type} tensors: run one process, or "
                "reduce on the CPU"
            )

    def __post_init__(self) -> None:
        if self.device_ids is not None:
            object.__setattr__(self, "device_ids", list(self.device_ids))

    @property
    def cost_model(self) -> Callable[[], CostModel | None] | None:
        """Finds the library's model for :meth:`choose`: that of the device's plugin."""
        return None if self._gpu is None else self._gpu.plugin.cost_model

    @property
    def target(self) -> Target | None:
        """What the device is, for its links; None where unknown, and before it is opened."""
        return None if self._gpu is None else self._gpu.target

    @property
    def device_identity(self) -> str | None:
        """UUID, else PCI address, by which ranks on one device are found; None where unknown."""
        return None if self._gpu is None else self._gpu.uuid or self._gpu.pci

    @property
    def machine(self) -> Machine | None:
        """What profiles of collectives call the device; None before it is opened."""
        if self._gpu is None:
            return None
        from portagpu.devices.collectives.tuning import Machine

        return Machine(
            backend=self._gpu.name,
            target=self.target.id if self.target is not None else None,
            arch=self._gpu.arch.name,
            product=self._gpu.product,
            units=self._gpu.sizing.unit_count,
            shared=self._gpu.plugin.shared,
        )

    @property
    def output_device(self) -> int | None:
        """``output_device`` for DistributedDataParallel; None on a CPU."""
        return self.device_ids[0] if self.device_ids else None

    @property
    def device_id(self) -> torch.device | None:
        """``device_id`` for ``init_process_group`` and FSDP; None on a CPU.

        It binds the process group to the device, and creates its communicator at once.
        """
        if not self.device_ids:
            return None
        import torch

        return torch.device(self.device_type, self.device_ids[0])

    def get_backend(self, group: dist.ProcessGroup | None = None) -> str:
        """The name of the library that moves this device's tensors in ``group``: ``c10d_name``.

        ``torch.distributed.get_backend`` answers with all of a group's libraries: "nccl" is
        "cpu:gloo,cuda:nccl" there. Raises ValueError for a group that has none for this device,
        Unsupported for a device without a library, and what torch raises before
        ``init_process_group``.
        """
        self._need_library()
        from torch.distributed import distributed_c10d as c10d

        config = c10d.get_backend_config(group)
        libraries = c10d.BackendConfig(c10d.Backend(config)).get_device_backend_map()
        found = libraries.get(self.device_type)
        if found is None:
            raise ValueError(f"the group of {config} has no library for {self.device_type} tensors")
        return str(found)

    def _engine_of(self, group: Any) -> str:
        """What moves this device's tensors in ``group``, with the variables that choose it.

        It is the class of the object that torch built (``ProcessGroup._get_backend``), in the words
        of the vendor's table; a class that has no words stands for itself.
        """
        import os

        import torch

        engine = group._get_backend(torch.device(self.device_type))
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it
        engine = getattr(engine, "wrapped_pg", engine)
        name = type(engine).__name__
        chosen = [
            f"{variable}={os.environ[variable]}"
            for variable in self.engine_variables
            if os.environ.get(variable)
        ]
        words = self.engines.get(name, name)
        return f"{words}, with {', '.join(chosen)}" if chosen else words

    @property
    def init_string(self) -> str:
        """The ``backend`` for ``init_process_group``: CPU tensors have a library on every device.

        A bare "nccl" leaves CPU tensors without one; "cpu:gloo,cuda:nccl" does not. Where the
        device is the CPU it is the bare name, so that ``get_backend()`` answers with it. Raises
        Unsupported for a device without a library.
        """
        self._need_library()
        if self.device_type == "cpu":
            return self.c10d_name
        return f"cpu:gloo,{self.device_type}:{self.c10d_name}"

    def init(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        store: Store | None = None,
        init_method: str | None = None,
        timeout_s: float = 300.0,
        collective_timeout_s: float | None = None,
        checked: bool = False,
    ) -> Membership:
        """Join the ranks of this run to one process group that moves this device's tensors.

        Rank, world size and address come from the launcher (torchrun, Slurm, MPI), else the world
        has one rank. Arguments override the launcher. No environment variable is written. Errors
        come within ``timeout_s`` plus two seconds.

        :param rank: the number of this rank, from 0.
        :param world_size: how many ranks there are; with ``rank``, or neither.
        :param store: a store of torch in which the ranks meet; not with ``init_method``.
        :param init_method: where the ranks meet: "tcp://HOST:PORT", "file:///PATH" or "env://".
        :param timeout_s: seconds until all ranks must have come.
        :param collective_timeout_s: seconds for each collective of the group; None is torch's
            default.
        :param checked: whether the collectives are compared between the ranks, as
            :attr:`Membership.checked <portagpu.devices.collectives.init.Membership>` says.
        :returns: this rank in its run. As a context manager it shuts down at the end of the block.
        :raises RankLost: with the ranks that did not come.
        :raises CollectiveError: where variables, world sizes, ranks or devices contradict each
            other, the port is in use, or a process group exists already.
        :raises ValueError: for a time limit that is not above 0, or both ``store`` and
            ``init_method``.
        :raises Unsupported: for a device without a communication library.
        """
        self._need_library()
        from portagpu.devices.collectives.init import init

        return init(
            self,
            rank=rank,
            world_size=world_size,
            store=store,
            init_method=init_method,
            timeout_s=timeout_s,
            collective_timeout_s=collective_timeout_s,
            checked=checked,
        )

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Destroy all process groups, and undo everything that :meth:`init` did.

        It waits up to ``timeout_s`` for the other ranks to shut down too. Raises, within
        ``timeout_s`` plus two seconds, RankLost with those of the missing ones whose processes have
        ended or are stopped, and CollectiveError where a store that no rank holds is gone. Where an
        error is being handled, that is a warning in the log instead, as it always is for ranks that
        are only slow; with 0 it neither waits nor raises. Without a rank the groups are aborted and
        their connections cut; torch would wait for it. Safe without a group, twice, and after an
        error; then :meth:`init` works again.
        """
        self._need_library()
        from portagpu.devices.collectives.init import shutdown

        shutdown(timeout_s, self.device_id)

    def checked(
        self, group: dist.ProcessGroup | None = None, timeout_s: float = 60.0
    ) -> CheckedGroup:
        """The collectives of a process group, compared between the ranks first.

        Call it on every rank of the group; see
        :class:`portagpu.devices.collectives.checked.CheckedGroup`.

        :param group: the process group; by default all ranks.
        :param timeout_s: seconds that a rank waits for the others to call, and for a collective to
            end.
        :returns: an object with the collectives under torch's names.
        :raises Unsupported: for a device without a communication library.
        :raises ValueError: for a time limit that is not above 0.
        :raises CollectiveError: where there is no process group, or this rank is not a member of
            it.
        """
        self._need_library()
        from portagpu.devices.collectives.checked import CheckedGroup

        return CheckedGroup(group, timeout_s, self._marks(group))

    def _marks(self, group: dist.ProcessGroup | None = None) -> CollectiveMarks | None:
        """What annotates the collectives of ``group`` (default: all ranks); None without a device.

        See :mod:`portagpu.devices.collectives.annotated`.
        """
        if self._gpu is None:
            return None
        from portagpu.devices.collectives.annotated import CollectiveMarks

        return CollectiveMarks(group, self._gpu.listens, self._gpu.labelled_block)

    def tuned(
        self,
        profile: Profile | str | os.PathLike[str],
        group: dist.ProcessGroup | None = None,
    ) -> TunedGroup:
        """The collectives of ``group`` (default: all ranks), each in the way that was fastest.

        :param profile: what ``portagpu collectives tune`` wrote, or its file.
        :param group: the process group; by default all ranks.
        :returns: see :class:`portagpu.devices.collectives.algorithms.TunedGroup`.
        :raises ValueError: for a profile of another machine, version or number of ranks; as
            FormatError for a file that is not a profile.
        :raises OSError: for a file that cannot be read.
        :raises Unsupported: for a device without a communication library.
        """
        self._need_library()
        from portagpu.devices.collectives.algorithms import TunedGroup

        ranks = _group_size(group)
        return TunedGroup(self._profile(profile), group, ranks, _nodes(ranks), self._marks(group))

    def _profile(self, profile: Profile | str | os.PathLike[str]) -> Profile:
        """The profile, which is one of this machine and these versions; else raises ValueError."""
        from portagpu.devices.collectives.tuning import Profile, read_profile

        found = profile if isinstance(profile, Profile) else read_profile(profile)
        machine = self.machine
        if machine is None:
            raise ValueError("a profile holds for an opened device: ask portagpu.backend().comm")
        found.check(machine, self.stack)
        return found

    @property
    def stack(self) -> Stack:
        """The library and torch, as profiles of collectives name them."""
        from portagpu.devices.collectives.tuning import Stack
        from portagpu.facts.torchbuild import torch_build

        build = torch_build()
        version = build.version if build is not None else None
        return Stack(library=self.library, version=self.version, torch=version or "")

    def choose(
        self,
        operation: str,
        size_bytes: int,
        *,
        ranks: int | None = None,
        nodes: int | None = None,
        measured: Fit | None = None,
        profile: Profile | str | os.PathLike[str] | None = None,
        ask_library: bool = False,
        group: dist.ProcessGroup | None = None,
        **question: Any,
    ) -> Choice:
        """What the library would choose for a collective of that size, and how long it takes.

        It opens no device and runs nothing.

        :param operation: the collective under torch's name ("all_reduce").
        :param size_bytes: its size in bytes, as nccl-tests counts it.
        :param ranks: how many ranks take part; by default those of ``group``.
        :param nodes: the machines that they are on; by default from ``LOCAL_WORLD_SIZE``, which
            launchers set, else 1.
        :param measured: a fit of measured times (:class:`portagpu.devices.collectives.cost.Fit`),
            which a library without a model needs.
        :param profile: a profile of this machine, or its file, as for :meth:`tuned`. Its times
            come first.
        :param ask_library: whether the library itself estimates the time. Every rank of an
            initialised group has to call this, and the library has to support it.
        :param group: the process group; by default all ranks.
        :param question: further fields of :class:`portagpu.devices.collectives.cost.Question`.
        :returns: the fastest candidate with its time in microseconds, and what it is based on.
        :raises Unsupported: where neither a model, times nor the library answer.
        :raises ValueError: for an unknown operation, or numbers that contradict each other.
        """
        self._need_library()
        from portagpu.devices.collectives.choice import choose, library_s_choice, tuned_choice
        from portagpu.devices.collectives.cost import Hardware, Question

        if ranks is None:
            ranks = _group_size(group)
        asked = Question(
            operation=operation,
            size_bytes=size_bytes,
            ranks=ranks,
            nodes=_nodes(ranks) if nodes is None else nodes,
            hardware=None if self.target is None else Hardware.of_target(self.target),
            **question,
        )
        if profile is not None:
            return tuned_choice(asked, self._profile(profile))
        model = self.cost_model() if self.cost_model is not None and self.target else None
        if not ask_library:
            return choose(asked, model, fit=measured, library_version=self.version)
        from portagpu.devices.collectives.choice import estimated_time_us

        time_us = estimated_time_us(operation, size_bytes, self.device_id, group)
        found = choose(asked, model, library_version=self.version) if model is not None else None
        library = f"{self.library} {self.version or ''}".strip()
        return library_s_choice(asked, time_us, library, found)


def _group_size(group: dist.ProcessGroup | None) -> int:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "say how many ranks take part, or call gpu.comm.init(): there is no process group"
        )
    return dist.get_world_size(group)


def _nodes(ranks: int) -> int:
    """The number of nodes for this many ranks, from torchrun's variable; 1 where it is not set."""
    import os

    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not local.isdecimal() or not 0 < int(local) < ranks or ranks % int(local):
        return 1
    return ranks // int(local)
