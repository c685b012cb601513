"""The index of a CPU device in a form that torch accepts as a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_OPERATIONS: Final = (
    *("lt", "le", "gt", "ge", "eq", "ne", "hash", "bool", "int", "index", "float"),
    *("neg", "pos", "abs", "invert", "add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod"),
    *("floordiv", "rfloordiv", "truediv", "rtruediv", "divmod", "rdivmod", "pow", "rpow"),
    *("and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift"),
    "format",
)


class CpuIndex(str):
    """An index of a CPU device: it counts, compares and formats as that number.

    Scripts write ``torch.zeros(2, device=torch.cuda.current_device())``. torch takes a number, and
    every subclass of int, for the index of an accelerator, and refuses it where there is none. What
    ``torch.cpu.current_device()`` answers is the text "cpu"; this is that text for torch and a
    number for everything else, equal to its number and to "cpu", which ``torch.load`` asks. It is
    no instance of int: where one is demanded, as by ``torch.tensor`` and ``json``, write
    ``int(index)``, or ``Backend.index``.
    """

    __slots__ = ("_index",)

    _index: int

    def __new__(cls, index: int) -> CpuIndex:
        made = super().__new__(cls, "cpu")
        made._index = index
        return made

    def __getnewargs__(self) -> tuple[int]:  # type: ignore[override]
        return (self._index,)


def _int_operation(name: str) -> Callable[..., Any]:
    operation: Callable[..., Any] = getattr(int, name)

    def method(self: CpuIndex, *others: Any) -> Any:
        plain = (each._index if type(each) is CpuIndex else each for each in others)
        return operation(self._index, *plain)

    method.__name__ = name
    return method


for _name in _OPERATIONS:
    setattr(CpuIndex, f"__{_name}__", _int_operation(f"__{_name}__"))


_indices: Final[dict[int, CpuIndex]] = {}


def cpu_index(index: int) -> CpuIndex:
    """The CpuIndex of that number, always the same object."""
    try:
        return _indices[index]
    except KeyError:
        return _indices.setdefault(index, CpuIndex(index))
