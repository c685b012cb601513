"""Random number generators: a model of states without numbers, and programs that draw.

The model knows no algorithm. The state of a generator is its seed and the draws since. Two draws of
one kind from equal states are bitwise equal. They differ where one state is further along than the
other, or the seeds differ in their lower 32 bits: ATen's CPU generator takes no more of a seed
(``at::mt19937``, pytorch v2.13.0, aten/src/ATen/core/MT19937RNGEngine.h). Of other pairs nothing
is claimed: Philox advances the same for draws of several sizes.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import error_line
from portagpu.suites.search.area import Area
from portagpu.suites.search.draws import BITS, ENOUGH_BITS, draws, repetition, wrong_numbers

if TYPE_CHECKING:
    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners

Drawn = tuple[str, int, str]
"""A draw: its kind, how many numbers, and their dtype."""
State = tuple[int, tuple[Drawn, ...]]
"""A generator's seed and what was drawn since."""

DEFAULT: Final = "default"
HOST: Final = "host"
"""The CPU's own generator, where the device has another one."""
OWN: Final = ("g0", "g1")
SLOTS: Final = ("s0", "s1")
SEEDS: Final = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 5, 2**53 + 1, 2**63 - 1)
SIZES: Final = (64, 0, 1, 5, 63, 65, 1000, 1001, 4096, 2**16 + 1)
SLOPES: Final = ((0.125, 0.375), (-2.75, -2.5), (-1.0, 1.0), (0.5, 0.5), (0.0, 0.25))
"""Bounds of the slopes of rrelu, negative ones too."""
RATES: Final = (0.5, 0.25, 0.0, 1.0, 0.75)
"""Of the elements that dropout leaves out."""


@dataclass(frozen=True, slots=True)
class Model:
    """The states of all generators, which begin with seed 0; a method is the call of its name.

    What has nothing to work on does nothing: a slot that holds no state, one that holds the state
    of a generator of another kind, and the end of a block where none began.
    """

    states: dict[str, State]
    saved: dict[str, tuple[str, State, Drawn]] = field(default_factory=dict)
    forks: list[dict[str, State]] = field(default_factory=list)

    def seed(self, generator: str, value: int, everywhere: bool) -> None:
        self.states[generator] = (value, ())
        if everywhere and HOST in self.states:
            self.states[HOST] = (value, ())

    def draw(self, generator: str, drawn: Drawn) -> State:
        """The state before the draw; nothing advances a generator by no numbers."""
        before = self.states[generator]
        if drawn[1]:
            self.states[generator] = (before[0], (*before[1], drawn))
        return before

    def save(self, generator: str, slot: str, drawn: Drawn) -> None:
        """Keep the state, and what is drawn from it next."""
        self.saved[slot] = generator, self.states[generator], drawn

    def restore(self, generator: str, slot: str) -> Drawn | None:
        """What was drawn from that state; None if there is none of this kind of generator."""
        if slot not in self.saved:
            return None
        origin, state, drawn = self.saved[slot]
        if (origin == HOST) != (generator == HOST):
            return None
        self.states[generator] = state
        return drawn

    def rewind(self, generator: str, slot: str) -> Drawn | None:
        """The same by an offset, which is one in the numbers of a seed: None for another seed."""
        if slot not in self.saved or self.saved[slot][1][0] != self.states[generator][0]:
            return None
        return self.restore(generator, slot)

    def fork(self) -> None:
        both = (DEFAULT, HOST)
        self.forks.append({each: self.states[each] for each in both if each in self.states})

    def join(self) -> bool:
        """Whether a block began."""
        if not self.forks:
            return False
        self.states.update(self.forks.pop())
        return True


def claimed_dtypes(gpu: Backend) -> list[str]:
    """The floating-point dtypes in which the device computes."""
    import torch

    from portagpu.devices.precision import Support

    computes = (Support.NATIVE, Support.EMULATED)
    return [each for each in BITS if gpu.precision.support(getattr(torch, each)) in computes]


def offset_of(generator: torch.Generator) -> int | None:
    """How far a generator is in the numbers of its seed.

    None where it has no offset: of ATen's CPU generator torch 2.13 raises "CPU Generator does not
    use offset".
    """
    try:
        return generator.get_offset()
    except (AttributeError, RuntimeError):
        return None


def put_offset(generator: torch.Generator, offset: int) -> None:
    """Go to an offset that :func:`offset_of` gave."""
    generator.set_offset(offset)


def differ(one: State, other: State) -> bool:
    """Whether two states have to give different numbers."""
    if one[0] % 2**32 != other[0] % 2**32:
        return True
    short, long = sorted((one[1], other[1]), key=len)
    # of one thing there is one permutation, which may take no number
    alone = (("randperm", 1), ("multinomial", 1))
    between = [each for each in long[len(short) :] if each[:2] not in alone]
    return one[0] == other[0] and long[: len(short)] == short and bool(between)


class _Generators(Area):
    name = "generators"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.strategies import call, programs

        names = [DEFAULT, *OWN] if gpu.device.type == "cpu" else [DEFAULT, *OWN, HOST]
        numbers = {"kind": sorted(draws()), "n": SIZES, "dtype": claimed_dtypes(gpu)}
        draw = call("draw", generator=names, **numbers, times=(1, 2), thread=(False, True))
        offsets = []
        if offset_of(gpu.generator()) is not None:
            where = call("offset", generator=[DEFAULT, *OWN])
            offsets = [where, call("rewind", generator=[DEFAULT, *OWN], slot=SLOTS)]
        return programs(
            draw,
            draw,
            draw,
            call("seed", generator=names, value=SEEDS, via=("own", "portagpu", "torch")),
            call("initial_seed", generator=names),
            call("rerun", generator=names),
            call("save", generator=names, slot=SLOTS, **numbers),
            call("restore", generator=names, slot=SLOTS),
            call("scribble", generator=names),
            call("fork"),
            call("join"),
            call(
                "differentiate",
                kind=("rrelu", "dropout", "feature_dropout"),
                n=(64, 1, 5, 1001),
                dtype=claimed_dtypes(gpu),
                option=tuple(range(len(SLOPES))),
            ),
            *offsets,
        )

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        with ExitStack() as blocks:
            return _Run(rank.gpu, blocks).all(program)


@dataclass(slots=True)
class _Run:
    """One program on the device and in the model."""

    gpu: Backend
    blocks: ExitStack
    model: Model = field(init=False)
    generators: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    forks: list[ExitStack] = field(default_factory=list)
    saved_offsets: dict[str, int | None] = field(default_factory=dict)
    offsets: list[tuple[str, State, int]] = field(default_factory=list)
    drawn: list[tuple[Drawn, State, str, torch.Tensor]] = field(default_factory=list)

    def all(self, program: Program) -> str:
        """The first difference."""
        import torch

        self.generators = {DEFAULT: self.gpu.generator()}
        self.generators |= {each: torch.Generator(self.gpu.device) for each in OWN}
        if self.gpu.device.type != "cpu":
            self.generators[HOST] = torch.default_generator
        self.model = Model(dict.fromkeys(self.generators, (0, ())))
        self.blocks.callback(torch.set_rng_state, torch.get_rng_state())
        self.blocks.callback(self.gpu.set_rng_state, self.gpu.get_rng_state().clone())
        for each in self.generators.values():
            each.manual_seed(0)
        for name, given in program:
            found: str | None = CALLS[name](self, **given)
            if found:
                return found
        return ""

    def seed(self, generator: str, value: int, via: str) -> None:
        import torch

        from portagpu.devices.functions import manual_seed

        if generator != DEFAULT:
            via = "own"
        self.model.seed(generator, value, everywhere=via == "torch")
        if via == "torch":
            torch.manual_seed(value)
        elif via == "portagpu":
            manual_seed(value)
        elif generator == DEFAULT:
            self.gpu.manual_seed(value)
        else:
            self.generators[generator].manual_seed(value)

    def initial_seed(self, generator: str) -> str:
        from portagpu.devices.functions import initial_seed

        asked = {generator: self.generators[generator].initial_seed}
        if generator == DEFAULT:
            asked |= {"the device": self.gpu.initial_seed, "portagpu": initial_seed}
        wanted = self.model.states[generator][0]
        for who, ask in asked.items():
            if (found := ask()) != wanted:
                return f"{who} says its seed is {found}, not {wanted}"
        return ""

    def save(self, generator: str, slot: str, kind: str, n: int, dtype: str) -> str:
        """Keep the state, and draw: the same numbers have to come after :meth:`restore`."""
        self.model.save(generator, slot, (kind, n, dtype))
        self.saved[slot] = self._state(generator)
        self.saved_offsets[slot] = offset_of(self.generators[generator])
        return self.draw(generator, kind, n, dtype)

    def _state(self, generator: str) -> torch.Tensor:
        if generator == DEFAULT:
            return self.gpu.get_rng_state()
        state: torch.Tensor = self.generators[generator].get_state()
        return state

    def restore(self, generator: str, slot: str) -> str:
        drawn = self.model.restore(generator, slot)
        if drawn is None:
            return ""
        put = self.generators[generator].set_state
        try:
            (self.gpu.set_rng_state if generator == DEFAULT else put)(self.saved[slot])
        except RuntimeError as error:
            return f"{generator} refuses a state that was saved: {error_line(error)}"
        return self.draw(generator, *drawn)

    def offset(self, generator: str) -> str:
        """The offset is 0 after a seed, goes on with each draw, and equal states have one."""
        found = offset_of(self.generators[generator])
        if found is None:
            return ""
        state = self.model.states[generator]
        if not state[1] and found:
            return f"the offset of {generator} is {found} after its seed, not 0"
        for where, other, offset in self.offsets:
            if other == state and offset != found:
                same = f"the one of {where} was {offset}, with the same seed and the same draws"
                return f"the offset of {generator} is {found}, and {same}"
            if other[0] == state[0] and differ(other, state) and offset == found:
                return f"the offset of {generator} is {found} before a draw and after it"
        self.offsets.append((generator, state, found))
        return ""

    def rewind(self, generator: str, slot: str) -> str:
        """Go back to the offset of a saved state: the same numbers have to come after it."""
        offset = self.saved_offsets.get(slot)
        drawn = None if offset is None else self.model.rewind(generator, slot)
        if offset is None or drawn is None:
            return ""
        try:
            put_offset(self.generators[generator], offset)
        except RuntimeError as error:
            return f"{generator} refuses the offset {offset}, which it had: {error_line(error)}"
        return self.draw(generator, *drawn)

    def scribble(self, generator: str) -> None:
        """A state is a copy: writing into it changes no generator."""
        self._state(generator).fill_(0)

    def fork(self) -> None:
        import torch

        device = self.gpu.device
        block = self.blocks.enter_context(ExitStack())
        own = {"devices": [device.index], "device_type": device.type}
        block.enter_context(
            torch.random.fork_rng(**({"devices": []} if device.type == "cpu" else own))
        )
        self.forks.append(block)
        self.model.fork()

    def join(self) -> None:
        if self.model.join():
            self.forks.pop().close()

    def rerun(self, generator: str) -> str:
        """Seed the generator as it was, and repeat its draws: the numbers have to come again."""
        value, history = self.model.states[generator]
        self.seed(generator, value, "own")
        return next(filter(None, (self.draw(generator, *each) for each in history)), "")

    def differentiate(self, kind: str, n: int, dtype: str, option: int) -> str:
        """The gradient of what multiplies by random numbers is these numbers.

        So it is the result divided by the input, within the roundings of a product and a quotient.
        The default generator's state is put back.
        """
        import torch

        x = (torch.arange(2 * n).view(n, 2) % 7 - 3.25).to(getattr(torch, dtype))
        given = x.to(self.gpu.device).requires_grad_()
        state = self.gpu.get_rng_state().clone()
        try:
            if kind == "rrelu":
                result = torch.nn.functional.rrelu(given, *SLOPES[option], training=True)
            elif kind == "dropout":
                result = torch.nn.functional.dropout(given, RATES[option])
            else:
                result = torch.feature_dropout(given, RATES[option], True)
            result.backward(torch.ones_like(result))
        except NotImplementedError:
            # torch has no kernel of it for that dtype
            return ""
        finally:
            self.gpu.set_rng_state(state)
        slopes, found = given.grad, result.detach().cpu().double()
        if slopes is None:
            return f"{kind} of {2 * n} {dtype} has no gradient"
        wanted = slopes.cpu().double() * x.double()
        wrong = (found - wanted).abs() > 8 * 2.0 ** -BITS[dtype] * found.abs()
        if not bool(wrong.any()):
            return ""
        place = int(wrong.flatten().to(torch.uint8).argmax())
        which = SLOPES[option] if kind == "rrelu" else RATES[option]
        values = [float(each.flatten()[place]) for each in (slopes.cpu(), x, found)]
        return (
            f"the gradient of {kind} ({which}) of {2 * n} {dtype} is {values[0]:g} at element "
            f"{place}, where {values[1]:g} became {values[2]:g}"
        )

    def draw(
        self, generator: str, kind: str, n: int, dtype: str, times: int = 1, thread: bool = False
    ) -> str:
        for _ in range(times):
            found = self._one_draw(generator, (kind, n, dtype), thread)
            if found:
                return found
        return ""

    def _one_draw(self, generator: str, drawn: Drawn, thread: bool) -> str:
        import torch

        kind, n, dtype = drawn
        draw = draws()[kind]
        numbers: list[torch.Tensor] = []

        def make() -> None:
            numbers.append(draw.make(n, getattr(torch, dtype), self.generators[generator]))

        if thread:
            other_thread = threading.Thread(target=make)
            other_thread.start()
            other_thread.join()
        else:
            make()
        if not numbers:
            return f"{kind} of {n} {dtype} raised in a thread"
        before = self.model.draw(generator, drawn)
        values = numbers[0].cpu()
        shown = f"draw {len(self.drawn) + 1} ({kind} of {n} {dtype} from {generator})"
        bits = draw.bits or BITS[dtype]
        wrong = wrong_numbers(values.double(), draw, n, dtype) or repetition(values, bits)
        if wrong:
            return f"{shown} {wrong}"
        enough = n * bits >= ENOUGH_BITS
        for number, (of, state, where, others) in enumerate(self.drawn, 1):
            # the CPU's generator and the device's are of different kinds
            if of != drawn or (where == HOST) != (generator == HOST):
                continue
            same = torch.equal(others, values)
            other = f"draw {number} (from {where})"
            if state == before and not same:
                return f"{shown} is not {other}, which had the same seed and the same draws before"
            if enough and differ(state, before) and same:
                return f"{shown} repeats {other}, whose state was another one"
        self.drawn.append((drawn, before, generator, values))
        return ""


CALLS: Final[Runners] = {
    "differentiate": _Run.differentiate,
    "draw": _Run.draw,
    "fork": _Run.fork,
    "initial_seed": _Run.initial_seed,
    "join": _Run.join,
    "offset": _Run.offset,
    "rerun": _Run.rerun,
    "restore": _Run.restore,
    "rewind": _Run.rewind,
    "save": _Run.save,
    "scribble": _Run.scribble,
    "seed": _Run.seed,
}
"""What runs each call of a program."""


AREA: Final = _Generators()
