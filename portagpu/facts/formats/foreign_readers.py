"""Readers of other distributions: found, checked, and called with a time limit.

What is wrong with one is a sentence that names its distribution, and affects no other reader.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.patience import LIMITS, BusyMachine
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Findings, FormatError, from_document, to_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from types import ModuleType

GROUP: Final = "portagpu.formats"
"""The entry-point group of readers: each names a package whose public modules are readers, or one
such module."""


class ForeignReader:
    """A reader module of another distribution, with our readers' attributes.

    Its shapes are weak: none begins inside an output that another reader knows. Raises FormatError
    for a module that is not a reader.
    """

    def __init__(self, module: ModuleType, owner: str) -> None:
        self.name = f"{owner}:{module.__name__}"
        self._title = f"the reader {module.__name__} of {owner}"
        self._module = module
        self._too_slow = ""
        if not (callable(getattr(module, "matches", None)) and callable(_parse(module))):
            raise FormatError(f"{self._title} is left out: it needs matches and parse")
        self.SINGLE = bool(getattr(module, "SINGLE", False))
        shapes = getattr(module, "SHAPES", ())
        root = getattr(module, "ROOT", None)
        if wrong := _wrong_shapes(shapes) or ("" if root is None else _wrong_pattern(root)):
            raise FormatError(f"{self._title} is left out: {wrong}")
        self.SHAPES = tuple(shape._replace(weak=True) for shape in shapes)
        if root is not None:
            self.ROOT = root

    def matches(self, text: str) -> bool:
        """Whether the module takes ``text``. Raises FormatError where it fails."""
        return bool(self._call(lambda: self._module.matches(text)))

    def parse(self, text: str) -> Findings:
        """The module's findings in ``text``. Raises FormatError where it has none, or fails."""
        found: Findings = self._call(lambda: _checked(_parse(self._module)(text)))
        return found

    def _call(self, call: Callable[[], Any]) -> Any:
        if self._too_slow:
            raise FormatError(self._too_slow)
        refused: list[FormatError] = []

        def answer() -> Any:
            try:
                return call()
            except FormatError as error:
                refused.append(error)

        value, failure = call_quietly(answer, LIMITS.read_s, self._title)
        if failure:
            problem = f"{self._title} {failure}"
            if not (failure.startswith("raised") or isinstance(failure, BusyMachine)):
                self._too_slow = problem
            raise FormatError(problem)
        if refused:
            raise refused[0]
        return value


class ForeignReaders(NamedTuple):
    readers: tuple[ForeignReader, ...]
    problems: tuple[str, ...]
    """Why a module is none of them, one sentence each."""


@cache
def foreign_readers() -> ForeignReaders:
    """The readers of other distributions, by entry point; each module is loaded once."""
    found: list[ForeignReader] = []
    problems: list[str] = []
    for point in reader_entry_points(own=False):
        owner = distribution_of(point)
        package = _load(point.value, owner, point.load, problems)
        modules = [package] if hasattr(package, "matches") else []
        names = reader_names(package)
        modules += [_load(name, owner, partial(import_module, name), problems) for name in names]
        for module in modules:
            if module is not None:
                try:
                    found.append(ForeignReader(module, owner))
                except FormatError as error:
                    problems.append(str(error))
        if package is not None and not modules:
            problems.append(
                f"the readers {point.value} of {owner} are left out: the package has no module"
            )
    return ForeignReaders(tuple(found), tuple(problems))


def _load(name: str, owner: str, load: Callable[[], Any], problems: list[str]) -> Any:
    module, failure = call_quietly(load, LIMITS.load_s, f"the reader {name}")
    if failure:
        problems.append(f"the reader {name} of {owner} is left out: it {failure}")
    return module


def reader_entry_points(*, own: bool) -> list[EntryPoint]:
    """The entry points of this distribution, or of all others."""
    found = (p for p in entry_points(GROUP) if (distribution_of(p) == OWN_DISTRIBUTION) == own)
    return sorted(set(found), key=lambda each: (each.name, each.value))


def reader_names(package: Any) -> list[str]:
    """The public modules of ``package``; empty for a module."""
    found = iter_modules(getattr(package, "__path__", ()))
    return [f"{package.__name__}.{each.name}" for each in found if not each.name.startswith("_")]


def _parse(module: Any) -> Any:
    return getattr(module, "parse", None)


def _checked(findings: object) -> Findings:
    """``findings`` with the types that they state. Raises for others."""
    if type(findings) is not Findings:
        raise TypeError(f"parse gave a {type(findings).__name__} instead of portagpu Findings")
    try:
        return from_document(to_document(findings))
    except FormatError as error:
        # not of the text, as what parse itself raises is
        raise ValueError(f"parse gave {error}") from None


def _wrong_shapes(shapes: object) -> str:
    if not isinstance(shapes, tuple | list) or any(type(each) is not Shape for each in shapes):
        return "its SHAPES are not a tuple of portagpu.facts.formats.Shape"
    return next(filter(None, (_wrong_shape(each) for each in shapes)), "")


def _wrong_shape(shape: Shape) -> str:
    patterns = (shape.line, shape.ends, shape.last, shape.device)
    if any(type(each) not in (re.Pattern, type(None)) for each in patterns) or shape.line is None:
        return "a Shape has a pattern that is not compiled"
    return _wrong_pattern(shape.begins)


def _wrong_pattern(pattern: object) -> str:
    """Why ``pattern`` cannot be one of several in a regular expression; empty where it can."""
    try:
        groups = re.compile(pattern).groups if isinstance(pattern, str) else 1
        joined = re.compile(f"({pattern})|(a)")
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}"
    if groups:
        return f"{pattern!r} must have no groups that capture"
    return f"{pattern!r} fits any text" if joined.match("") else ""
