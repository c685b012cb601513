"""What cases are given: the device, torch, its target, worlds of ranks, and a place for notes.

What a case asks for is what its result can depend on, and so what it can earn: ``EARNS`` of
``portagpu.suite.cases``.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.contract import Capability
from portagpu.errors import Unsupported
from portagpu.suite.batch import Batches, calls_of
from portagpu.suite.cases import ATTRIBUTE, Case, NotHere, RankFailed
from portagpu.suite.session import SESSION
from portagpu.world import RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from portagpu.collectives.comm import Comm
    from portagpu.contract import Backend
    from portagpu.target import Target
    from portagpu.world import RankOutcome, Ranks, WorldOutcome

_SEED: Final = 20240607
_WORLD_SHARE: Final = 0.5
"""A world of ranks ends well before its case does, so that the rank at fault can be named."""
_RETRY_SHARE: Final = 0.6
"""Of a world's time, where the world that it shared may have taken all of its own."""
_RAISED: Final = "raised AssertionError: "


def library_of(gpu: Backend) -> Comm:
    """The communication library of the device.

    Raises Unsupported where the backend does not claim collectives: there is none to judge.
    """
    if Capability.COLLECTIVES not in gpu.capabilities:
        raise Unsupported(f"the {gpu.name} backend does not claim collectives")
    return gpu.comm


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Backend:
    """The device under test, for cases that only ask what it is: they run nothing on it."""
    return pytestconfig.stash[SESSION].device()


@pytest.fixture(scope="session")
def gpu(backend: Backend) -> Backend:
    """The device under test, for cases that run something on it."""
    return backend


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch, so that case files need not import it to be listed."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def target(backend: Backend) -> Target | None:
    """The target that the device is, or None."""
    return backend.target


@pytest.fixture
def comm(backend: Backend) -> Comm:
    """The device's communication library; Unsupported where the backend claims none."""
    return library_of(backend)


@pytest.fixture
def installed() -> Callable[[str], bool]:
    """``installed(name)``: whether this Python has that package."""
    return lambda name: importlib.util.find_spec(name) is not None


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """Every case starts from the same random numbers, whatever ran before it."""
    importlib.import_module("torch").manual_seed(_SEED)


@pytest.fixture
def record(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Write down what a device does where nothing is specified."""
    return pytestconfig.stash[SESSION].observed.append


@pytest.fixture(scope="session")
def ranks(pytestconfig: pytest.Config) -> Iterator[Ranks]:
    """The server that forks worlds of ranks."""
    with pytestconfig.stash[SESSION].rank_server() as server:
        yield server


@pytest.fixture(scope="session")
def batches() -> Batches:
    """The worlds that ran for all parameters of a case at once."""
    return Batches()


@pytest.fixture
def world(
    request: pytest.FixtureRequest, gpu: Backend, ranks: Ranks, batches: Batches
) -> Callable[..., list[Any]]:
    """``world(n, function, **arguments)``: what ``function(rank, ...)`` returned on each rank.

    The function is one of the case's own file. A rank that raises, dies or hangs fails the case
    with a sentence that names it, unless it is among the ``lost``, whose value is None. Raises
    NotHere where there are fewer devices than ranks.
    """
    case: Case = getattr(request.function, ATTRIBUTE)
    session = request.config.stash[SESSION]
    limit_s = _WORLD_SHARE * (case.timeout_s or session.timeout_s)

    def run(
        n: int, function: Callable[..., Any], *, lost: Sequence[int] = (), **arguments: Any
    ) -> list[Any]:
        library_of(gpu)
        if n > gpu.device_count() and not gpu.plugin.shared:
            raise NotHere(f"needs {n} devices, and this machine has {gpu.device_count()}")

        # the device that is judged is rank 0's
        first, count = (0, n) if gpu.plugin.shared else (gpu.index, gpu.device_count())
        indices = [(first + rank) % count for rank in range(n)]

        def fork(place: str, given: dict[str, Any], share: float = 1.0) -> WorldOutcome:
            limit = limit_s * share
            return ranks.run(
                place,
                n,
                arguments=given,
                backend=gpu.name,
                indices=indices,
                lost=lost,
                timeout_s=limit,
            )

        place = f"{function.__code__.co_filename}:{function.__name__}"
        values, failed = None, None
        if not lost:
            calls = calls_of(*_parameters(request), arguments)
            values, failed = batches.values(calls, place, n, arguments, fork)
        if values is not None:
            return values
        if failed is not None and failed.first_failure is not None:
            said = failed.sentence.replace(f" {_RAISED}", ": ")
            session.shared_world = {"state": str(failed.first_failure.state), "sentence": said}
        outcome = fork(place, arguments, 1.0 if failed is None else _RETRY_SHARE)
        if outcome.first_failure is not None:
            raise _failure(outcome.first_failure, outcome.sentence)
        if not lost:
            batches.keep(place, n, arguments, outcome.values)
        return outcome.values

    return run


def _failure(blamed: RankOutcome, sentence: str) -> AssertionError:
    """What a case fails with: a rank's assertion is about a value, any other end is not."""
    if blamed.state is RankState.RAISED and blamed.error.startswith(_RAISED):
        return AssertionError(sentence.replace(f" {_RAISED}", ": "))
    return RankFailed(sentence, "raised" if blamed.state is RankState.RAISED else "lost")


def _parameters(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parameters of the case at hand, and those of all its forms that are to run."""
    forms = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is request.function
    ]
    every = [item.callspec.params if hasattr(item, "callspec") else {} for item in forms]
    return every[forms.index(request.node)], every
