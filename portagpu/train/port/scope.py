"""What the names of one module stand for: imports, guards, numbers of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst
from libcst.metadata import QualifiedNameSource

from portagpu.train.port.expressions import (
    calls,
    code_of,
    dotted,
    is_dotted,
    last_name,
    string,
)
from portagpu.train.port.names import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libcst.metadata import Scope as LibcstScope

    from portagpu.train.port.rules import Rules

OWN: Final = "portagpu"


class Scope(cst.CSTVisitor):
    """Collects once, before uses are looked for. ``scopes`` is of libcst's ScopeProvider."""

    def __init__(self, rules: Rules, scopes: Mapping[cst.CSTNode, LibcstScope | None]) -> None:
        super().__init__()
        self._scopes = scopes
        self._modules = {each.module for each in rules.words}
        self._available = frozenset().union(*(each.available for each in rules.words))
        self._devices = {each.device for each in rules.words}
        self._roots = {name.partition(".")[0] for name in rules.names}
        self._taken: set[str] = set()
        self._alias: str | None = None
        self._guards: set[str] = set()
        self._indices: set[str] = set()
        self._others: set[str] = set()
        self._depth = 0
        self.methods: set[str] = set()

    @property
    def alias(self) -> str:
        """What portagpu is, or will be, called: "pg" unless the file has another use for it."""
        return self._alias or ("pg" if "pg" not in self._taken else OWN)

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
            names = {each.name for each in found if each.source is QualifiedNameSource.IMPORT}
            return names.pop() if len(names) == len(found) == 1 else ""
        text = dotted(node)  # a star import may bring it
        return text if text.partition(".")[0] in self._roots else ""

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

    def _names_device(self, node: cst.CSTNode) -> bool:
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

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.target, node.value)

    def _assigned(self, target: cst.CSTNode, value: cst.CSTNode) -> None:
        name = dotted(target)
        if not name:
            return
        if self.is_guard(value):
            self._guards.add(name)
        if isinstance(value, cst.Integer | cst.UnaryOperation) or dotted(value) == "None":
            return
        (self._indices if self.is_index(value) else self._others).add(name)

    def visit_Name(self, node: cst.Name) -> None:
        self._taken.add(node.value)

    def visit_Import(self, node: cst.Import) -> bool:
        for each in node.names:
            if dotted(each.name) == OWN and self._depth == 0:
                self._alias = OWN if each.asname is None else last_name(each.asname.name)
            elif each.asname is not None:
                self._taken.add(last_name(each.asname.name))
            else:
                self._taken.add(dotted(each.name).partition(".")[0])
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.methods.add(node.name.value)
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._depth += 1

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._depth -= 1
