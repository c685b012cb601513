"""What the names of one module stand for.

:class:`Scope` knows its imports, guards, device numbers, and the values that a device answered.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import libcst as cst
from libcst.metadata import QualifiedNameSource

from portagpu.train.port.expressions import (
    argument,
    calls,
    code_of,
    dotted,
    is_dotted,
    keyword,
    last_name,
    string,
    texts_in,
)
from portagpu.train.port.reading import parameters_of
from portagpu.train.port.rules import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from libcst.metadata import Scope as LibcstScope

    from portagpu.train.port.rules import Rules


OWN: Final = "portagpu"
CLASSES: Final = frozenset({"CUDAGraph", "Event", "ExternalStream", "Graph", "MemPool", "Stream"})
"""The names of portagpu that are classes, as torch's of these names are."""


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names(child)


_SCRIPT: Final = frozenset({"script", "script_method", "script_if_tracing", "export"})
_IN_PYTHON: Final = frozenset({"ignore", "unused"})
"""Functions of ``torch.jit`` that compile others, or leave them to Python."""
_ANSWERS: Final = ("get_device_properties", "memory_stats")
"""Functions of a device whose answers have parts that not every device has."""


class Scope(cst.CSTVisitor):
    """Collects once, before uses are looked for. ``scopes`` is of libcst's ScopeProvider, and
    ``folder`` the one of the file."""

    def __init__(
        self, rules: Rules, scopes: Mapping[cst.CSTNode, LibcstScope | None], folder: Path
    ) -> None:
        super().__init__()
        self._folder = folder
        self._scopes = scopes
        self._modules = {each.module for each in rules.words}
        self._available = frozenset().union(*(each.available for each in rules.words))
        self._devices = {each.device for each in rules.words}
        self._classes = {name for name, each in rules.names.items() if each.to in CLASSES}
        self._roots = {name.partition(".")[0] for name in rules.names}
        self.taken: set[str] = set()
        self._alias: str | None = None
        self._guards: set[str] = set()
        self._indices: set[str] = set()
        self._others: set[str] = set()
        self._depth = 0
        self.methods: set[str] = set()
        self._placers: list[str | cst.Lambda] = []
        self._functions: dict[str, list[cst.Lambda | cst.FunctionDef]] = {}
        self.patched: set[str] = set()
        """Qualified names that the file itself replaces, or asks for as a class."""
        self._answers: dict[str, set[tuple[object, str]]] = {}
        """The names of what a function of a device answered, with their scopes."""
        self.has_torch = False
        self.own_methods = ""
        """A class that the file names, with a method of a device's name."""
        self._wrappers: set[str] = set()
        self._own_classes: set[str] = set()
        self.texts: dict[str, str] = {}
        """All texts that the file gives a name."""
        self._script: set[str] = set()
        """The names of functions that TorchScript is asked to compile."""
        self.same_seeds: set[cst.CSTNode] = set()
        """Functions that seed a device next to a line that seeds the host in the same way."""

    @property
    def alias(self) -> str:
        """What portagpu is, or will be, called: "pg" unless the file has another use for it."""
        names = ("pg", OWN, f"{OWN}_")
        return self._alias or next((each for each in names if each not in self.taken), names[-1])

    def is_patched(self, name: str) -> bool:
        """Whether the file replaces what has that name, or what it is a part of."""
        return any(f"{name}.".startswith(f"{each}.") for each in self.patched if each)

    @property
    def has_import(self) -> bool:
        """Whether portagpu is imported already, for the whole file."""
        return self._alias is not None

    def qualified(self, node: cst.CSTNode) -> str:
        """The name where it was imported from: "torch.cuda.synchronize".

        Empty for local names, and for those that several imports may have bound.
        """
        if not is_dotted(node):
            return ""
        scope = self._scopes.get(node)
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        if found:
            names = self._imported_names(node)
            return names.pop() if len(names) == len(found) == 1 else ""
        text = dotted(node)  # a star import may bring it
        return text if text.partition(".")[0] in self._roots else ""

    def _imported_names(self, node: cst.CSTNode) -> set[str]:
        scope = self._scopes.get(node)
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        return {each.name for each in found if each.source is QualifiedNameSource.IMPORT}

    def possible(self, node: cst.CSTNode) -> set[str]:
        """The names that it may have been imported from, where one statement of several decides:
        ``try: from torch.cuda.amp import autocast`` and ``except ImportError: autocast = None``."""
        is_one = not is_dotted(node) or self.qualified(node) != ""
        return set() if is_one else self._imported_names(node)

    def library(self, node: cst.CSTNode) -> str | None:
        """The text of a communication library: "nccl", ``torch.distributed.Backend.NCCL``."""
        owner, _, name = self.qualified(node).rpartition(".")
        is_constant = owner.startswith("torch.distributed.") and owner.endswith(".Backend")
        return name.lower() if is_constant else string(node)

    def is_own(self, node: cst.CSTNode) -> bool:
        """Whether the expression is built on portagpu already."""
        if self.qualified(node).partition(".")[0] == OWN:
            return True
        return any(self.is_own(each) for each in node.children)

    def is_index(self, node: cst.CSTNode) -> bool:
        """Whether the value is the number of a device, by its name or by what it was assigned."""
        if isinstance(node, cst.Integer) or dotted(node) in self._indices - self._others:
            return True
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.Modulo) and self._counts_devices(node.right)
        if isinstance(node, cst.Call) and last_name(node.func) == "int":
            return "LOCAL_RANK" in code_of(node)
        return INDEX_NAME.fullmatch(last_name(node)) is not None

    def _counts_devices(self, node: cst.CSTNode) -> bool:
        return any(
            self.qualified(each.func).rpartition(".")[2] == "device_count" for each in calls(node)
        )

    @cached_property
    def storages(self) -> set[cst.CSTNode]:
        """The values that are a storage: what a ``map_location`` is called with."""
        found: set[cst.CSTNode] = set()
        for placer in self._placers:
            for each in (
                [placer] if not isinstance(placer, str) else self._functions.get(placer, [])
            ):
                first = each.params.params[0].name.value if each.params.params else ""
                found |= {node for node in _names(each.body) if node.value == first}
        return found

    def may_be_storage(self, node: cst.CSTNode) -> bool:
        """Whether its name says that it is a storage."""
        return "storage" in last_name(node.func if isinstance(node, cst.Call) else node).lower()

    def is_class(self, node: cst.CSTNode) -> bool:
        """Whether it is a class of the file, or a name that was imported and is written as one."""
        is_imported = last_name(node)[:1].isupper() and self.qualified(node) != ""
        return is_imported or dotted(node) in self._own_classes

    def parameters(self, function: cst.CSTNode) -> list[str]:
        """The names of the parameters of a function or class that the file defines once, or that
        is a function of a module next to it."""
        found = self._functions.get(dotted(function), [])
        if not found:
            return parameters_of(self._folder, self.qualified(function))
        if len(found) > 1:
            return []
        names = [each.name.value for each in found[0].params.params]
        return names[1:] if dotted(function) in self._own_classes else names

    def is_wrapper(self, node: cst.CSTNode) -> bool:
        """Whether it is a class of the file that derives from DistributedDataParallel."""
        return dotted(node) in self._wrappers

    def is_answer(self, node: cst.CSTNode, function: str) -> bool:
        """Whether the value is what that function of a device answered: "memory_stats"."""
        if isinstance(node, cst.Call):
            parts = self.qualified(node.func).rpartition(".")
            modules = {*self._modules, *(f"{each}.memory" for each in self._modules)}
            return parts[2] == function and parts[0] in modules
        return bool(self._places(node) & self._answers.get(function, set()))

    def _places(self, node: cst.CSTNode) -> set[tuple[object, str]]:
        """The scopes in which a name is bound, each with it; other dotted names have none."""
        name, scope = dotted(node), self._scopes.get(node)
        if not name:
            return set()
        if not isinstance(node, cst.Name) or scope is None:
            return {(None, name)}
        return {(each.scope, name) for each in scope[name]}

    @cached_property
    def scripted(self) -> set[cst.CSTNode]:
        """The functions that TorchScript compiles, by their names, with those that they call.

        It refuses a call of portagpu's functions, which are Python's.
        """
        found: set[cst.CSTNode] = set()
        names = [*self._script]
        while names:
            for each in self._functions.get(names.pop(), ()):
                if each in found or not isinstance(each, cst.FunctionDef):
                    continue
                if not any(self._is_of_script(part, _IN_PYTHON) for part in each.decorators):
                    found.add(each)
                    names += [last_name(call.func) for call in calls(each.body)]
        return found

    def _is_of_script(self, node: cst.Decorator | cst.Call, names: frozenset[str]) -> bool:
        """Whether the decorator, or what is called, is one of ``torch.jit``'s."""
        what = node.decorator if isinstance(node, cst.Decorator) else node.func
        what = what.func if isinstance(what, cst.Call) else what
        module, _, name = self.qualified(what).rpartition(".")
        return module == "torch.jit" and name in names

    # ---- guards

    def is_guard(self, test: cst.CSTNode) -> bool:
        """Whether what it guards runs only where the vendor's device, or a GPU, is there."""
        if isinstance(test, cst.BooleanOperation):
            sides = (self.is_guard(test.left), self.is_guard(test.right))
            return any(sides) if isinstance(test.operator, cst.And) else all(sides)
        if isinstance(test, cst.Call):
            if self.qualified(test.func) in self._available:
                return True
            starts = last_name(test.func) == "startswith" and test.args
            return bool(starts) and self._names_device(test.args[0].value)
        if isinstance(test, cst.Attribute) and test.attr.value in {
            f"is_{each}" for each in self._devices
        }:
            return True
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return self._compares_device(test)
        return dotted(test) in self._guards if is_dotted(test) else False

    def is_opposite(self, test: cst.CSTNode) -> bool:
        """Whether it is the negation of a guard."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.is_guard(test.expression)
        return False

    def is_other(self, test: cst.CSTNode) -> bool:
        """Whether it holds on a CPU by what it compares: ``device != "cuda"``."""
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return False
        operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, cst.NotEqual | cst.NotIn):
            return self._names_device(test.left) or self._names_device(other)
        return isinstance(operator, cst.Equal) and "cpu" in (string(test.left), string(other))

    def _names_device(self, node: cst.CSTNode) -> bool:
        """Also ``torch.device("cuda")`` and its type, as they are compared."""
        if isinstance(node, cst.Attribute) and node.attr.value == "type":
            node = node.value
        if isinstance(node, cst.Call) and self.qualified(node.func) == "torch.device":
            node = node.args[0].value if node.args else node
        text = string(node)
        return text is not None and text.partition(":")[0] in self._devices

    def _compares_device(self, test: cst.Comparison) -> bool:
        operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, cst.GreaterThan | cst.GreaterThanEqual):
            return self._counts_devices(test.left)
        if isinstance(operator, cst.NotEqual):
            return "cpu" in (string(test.left), string(other))
        if isinstance(operator, cst.Equal | cst.In | cst.Is):
            return self._names_device(test.left) or self._names_device(other)
        return False

    # ---- what is collected

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._assigned(target.target, node.value)

            if isinstance(target.target, cst.Attribute):
                self.patched.add(self.qualified(target.target) or dotted(target.target))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.target, node.value)

    def visit_Call(self, node: cst.Call) -> None:
        last = last_name(node.func)
        if last in _SCRIPT and node.args and self._is_of_script(node, _SCRIPT):
            self._script |= {"forward", last_name(node.args[0].value)}
        if last in ("setattr", "patch", "object") and node.args:
            first, second = node.args[0].value, node.args[1].value if len(node.args) > 1 else None
            owner = self.qualified(first) or dotted(first)
            self.patched.add(string(first) or f"{owner}.{string(second)}")
        if last in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].value
            elements = kinds.elements if isinstance(kinds, cst.Tuple) else [node.args[1]]
            self.patched |= {self.qualified(each.value) for each in elements} - self._classes
        place = keyword(node, "map_location")
        if place is None and last == "load":
            place = argument(node, 1, "map_location")
        if place is not None and isinstance(place.value, cst.Name | cst.Lambda):
            name = place.value.value if isinstance(place.value, cst.Name) else place.value
            self._placers.append(name)

    def _assigned(self, target: cst.CSTNode, value: cst.CSTNode) -> None:
        name = dotted(target)
        if not name:
            return
        if isinstance(value, cst.BaseString):
            self.texts[name] = f"{self.texts.get(name, '')} {texts_in(value)}"
        if isinstance(value, cst.Lambda):
            self._functions.setdefault(name, []).append(value)
        if self.is_guard(value):
            self._guards.add(name)
        for each in _ANSWERS:
            if self.is_answer(value, each):
                self._answers.setdefault(each, set()).update(self._places(target))
        if isinstance(value, cst.Integer | cst.UnaryOperation) or dotted(value) == "None":
            return
        (self._indices if self.is_index(value) else self._others).add(name)

    def visit_Module(self, node: cst.Module) -> None:
        self._seeded(node.body)

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._seeded(node.body)

    def _seeded(self, block: Sequence[cst.BaseStatement]) -> None:
        """Seeds of devices with the host's value after it, or with any before it."""
        value, before = "", set[cst.CSTNode]()
        for each in block:
            small = each.body[0] if isinstance(each, cst.SimpleStatementLine) else None
            call = small.value if isinstance(small, cst.Expr) else None
            if isinstance(small, cst.Assign) and not any(calls(small)):
                continue
            if not isinstance(call, cst.Call) or "seed" not in last_name(call.func):
                value, before = "", set()
                continue
            name = self.qualified(call.func)
            if name in ("torch.manual_seed", "torch.random.manual_seed"):
                self.same_seeds |= before
                value = code_of(call.args[0].value) if call.args else ""
            elif name.rpartition(".")[0] in self._modules and call.args:
                before.add(call.func)
                if code_of(call.args[0].value) == value:
                    self.same_seeds.add(call.func)

    def visit_Name(self, node: cst.Name) -> None:
        self.taken.add(node.value)

    def visit_Import(self, node: cst.Import) -> bool:
        for each in node.names:
            if dotted(each.name) == OWN and self._depth == 0:
                self._alias = OWN if each.asname is None else last_name(each.asname.name)
            elif each.asname is not None:
                self.taken.add(last_name(each.asname.name))
            else:
                self.taken.add(dotted(each.name).partition(".")[0])
                self.has_torch |= dotted(each.name).partition(".")[0] == "torch"
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar):
            # it may bind any short name
            self.taken.add("pg")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.methods.add(node.name.value)
        if any(self._is_of_script(each, _SCRIPT) for each in node.decorators):
            self._script.add(node.name.value)
        self._functions.setdefault(node.name.value, []).append(node)
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._own_classes.add(node.name.value)
        if any(self._is_of_script(each, _SCRIPT) for each in node.decorators):
            self._script |= {
                each.name.value for each in node.body.body if isinstance(each, cst.FunctionDef)
            }
        for each in node.body.body:
            if isinstance(each, cst.FunctionDef) and each.name.value == "__init__":
                self._functions.setdefault(node.name.value, []).append(each)
        if any(last_name(each.value) == "DistributedDataParallel" for each in node.bases):
            self._wrappers.add(node.name.value)
        self._depth += 1

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._depth -= 1
