"""The uses in one Python file: what a name or an import alone shows, and code that needs a GPU.

``analysis.Finder`` adds what the places of a module show: calls, assignments, comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from portagpu.train.port.expressions import Writer, code_of, dotted, last_statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.train.port.rules import Name, Rule, Rules
    from portagpu.train.port.scope import Scope


@dataclass(frozen=True, slots=True)
class Use:
    """One use. ``replace`` makes the new node of the node with its own parts replaced; without it
    ``left`` says why the use stays. ``line`` and ``column`` are 0 until they are looked up."""

    node: cst.CSTNode
    rule: Rule
    code: str
    replace: Callable[[Any], cst.CSTNode] | None = None
    left: str = ""
    line: int = 0
    column: int = 0


class Uses(cst.CSTVisitor):
    """Collects uses by name, and passes over code that runs only with a GPU: it is portable."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        super().__init__()
        self.rules = rules
        self.scope = scope
        self.write: Writer = Writer(scope.alias)
        self.uses: list[Use] = []
        self.handled: set[cst.CSTNode] = set()
        self._portable: set[cst.CSTNode] = set()
        self.called: dict[cst.CSTNode, set[str]] = {}
        """What is called -> the keywords of the call."""
        self._asserted: set[cst.CSTNode] = set()
        self._bare: set[cst.CSTNode] = set()
        self._packages: list[tuple[frozenset[str], cst.CSTNode, Rule]] = []
        self._named: set[str] = set()
        self._functions: list[cst.FunctionDef] = []
        self._tries = 0
        self._annotations = 0
        self._shown = 0

    def unless_cpu(
        self, node: cst.CSTNode, otherwise: Callable[[Any], cst.BaseExpression]
    ) -> Callable[[Any], cst.CSTNode]:
        """Keeps the node for every GPU; a CPU has ``otherwise`` of it instead."""
        return lambda new: self.write.unless_cpu(new, otherwise(new), bare=node in self._bare)

    def add(
        self,
        node: cst.CSTNode,
        rule: Rule,
        replace: Callable[[Any], cst.CSTNode] | None = None,
        left: str = "",
    ) -> None:
        """Note a use, once for each node."""
        if node in self.handled:
            return
        self.handled.add(node)
        if replace is not None and self._shown:
            replace, left = None, "the f-string prints its code, which would be another"
        if replace is not None and any(each in self.scope.scripted for each in self._functions):
            replace, left = None, "TorchScript compiles it, and takes no call of portagpu"
        if replace is None and self._annotations:
            return  # torch has the names of types everywhere
        self.uses.append(Use(node, rule, code_of(node), replace, left))

    # ---- code that only runs with a GPU

    def on_visit(self, node: cst.CSTNode) -> bool:
        if node in self._portable:
            return False
        if isinstance(node, cst.If | cst.IfExp):
            self._note_branches(node)
        elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
            if node not in self._asserted and self.scope.is_guard(node.left):
                self._portable.add(node.right)
        elif isinstance(node, cst.Assert):  # its own question is rewritten, and the rest with it
            self._asserted |= {*_sides(node.test)}
        elif isinstance(node, cst.IndentedBlock):
            self._note_early_return(node)
        return super().on_visit(node)

    def is_portable(self, node: cst.CSTNode) -> bool:
        """Whether the node is known to run only with a GPU."""
        return node in self._portable

    def _note_branches(self, node: cst.If | cst.IfExp) -> None:
        if self.scope.is_guard(node.test):
            self._portable |= {node.test, node.body}
        elif self.scope.is_opposite(node.test):
            self._portable.add(node.test)
            if node.orelse is not None:
                self._portable.add(node.orelse)

    def _note_early_return(self, block: cst.IndentedBlock) -> None:
        for number, each in enumerate(block.body):
            if not isinstance(each, cst.If) or not self.scope.is_opposite(each.test):
                continue
            if isinstance(last_statement(each.body), cst.Return | cst.Continue):
                self._portable |= {*block.body[number + 1 :]}

    # ---- names

    def visit_Name(self, node: cst.Name) -> bool:
        return self._visit_dotted(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if self._visit_dotted(node):
            node.value.visit(self)
        return False  # the name after the dot is not in the scope

    def visit_Arg(self, node: cst.Arg) -> bool:
        if not node.star:
            self._bare.add(node.value)
        node.value.visit(self)
        return False

    def _visit_dotted(self, node: cst.Name | cst.Attribute) -> bool:
        if node in self.handled:
            return False
        name = self.scope.qualified(node)
        return self.look_up(node, name) if name else self._look_up_any(node)

    def _look_up_any(self, node: cst.Name | cst.Attribute) -> bool:
        """As :meth:`look_up` where several statements may have bound the name."""
        for name in sorted(self.scope.possible(node)):
            entry = self.rules.names.get(name)
            if entry is not None:
                self._named.add(name)
                self.add(node, entry.rule, left="another statement may give it another value")
                return False
        return True

    def look_up(self, node: cst.BaseExpression, name: str) -> bool:
        """Note the use of a qualified name; True where its parts are still to be looked at."""
        if any(name in each.available for each in self.rules.words):
            return False
        entry = self.rules.names.get(name)
        if entry is not None:
            self._named.add(name)
            self._add_name(node, entry, name)
            return False
        for words in self.rules.words:
            if f"{name}.".startswith(f"{words.module}.") and "unknown name" in self.rules.shapes:
                is_module = name == words.module
                why = "it is the whole module" if is_module else "portagpu has no such name"
                self.add(node, self.rules.shapes["unknown name"], left=why)
                return False
        return True

    def _add_name(self, node: cst.CSTNode, entry: Name, name: str) -> None:
        if "seed" in self.rules.shapes and entry.rule is self.rules.shapes["seed"]:
            same = node in self.scope.same_seeds
            left = "" if same else "on a CPU it would seed the host's generator, which has its own"
            replace = self.write.instead(f"pg.{entry.to}") if same else None
            self.add(node, entry.rule, replace, left)
        elif entry.to is None:
            self.add(node, entry.rule, left="no single expression replaces it")
        elif entry.rule is self.rules.shapes.get("absent") and node in self.called:
            self.add(node, entry.rule, left="a CPU raises Unsupported, and its value is used")
        elif self.scope.is_patched(name):
            self.add(
                node, entry.rule, left="the file puts another object there, or asks for its class"
            )
        elif entry.to.startswith(".") and not self.scope.has_torch:
            self.add(node, entry.rule, left=f"this file does not import torch for {entry.to[1:]}")
        elif own := sorted(entry.own_keywords & self.called.get(node, set())):
            self.add(node, entry.rule, left=f"torch's has no {own[0]}")
        elif entry.called and node not in self.called:
            self.add(node, entry.rule, left="it is not called here: portagpu's is a function")
        else:
            to = entry.to
            code = to.removeprefix(".") if to.startswith(".") else f"pg.{to}"
            self.add(node, entry.rule, self.write.instead(code))

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self._annotations -= 1

    def visit_FormattedStringExpression(self, node: cst.FormattedStringExpression) -> None:
        self._shown += node.equal is not None

    def leave_FormattedStringExpression(self, original_node: cst.FormattedStringExpression) -> None:
        self._shown -= original_node.equal is not None

    # ---- imports

    def imported_by_text(self, call: cst.Call, name: str) -> None:
        """``importlib.import_module("torch.cuda")``, also of packages."""
        parts = name.split(".")
        packages = [".".join(parts[:count]) for count in (2, 1)]
        rule = next((self.rules.packages[each] for each in packages
                     if each in self.rules.packages), None)  # fmt: skip
        if any(f"{name}.".startswith(f"{each.module}.") for each in self.rules.words):
            rule = self.rules.shapes.get("unknown name")
        if rule is not None and not self._tries:
            self.add(call, rule, left="the module is named by a text")

    def visit_Try(self, node: cst.Try) -> None:
        self._tries += 1

    def leave_Try(self, original_node: cst.Try) -> None:
        self._tries -= 1

    def visit_Import(self, node: cst.Import) -> bool:
        for each in node.names:
            bound = dotted(each.name) if each.asname else dotted(each.name).partition(".")[0]
            self._visit_package(node, dotted(each.name), [bound])
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if node.module is not None and not node.relative:
            name = dotted(node.module)
            stars = isinstance(node.names, cst.ImportStar)
            parts = [] if isinstance(node.names, cst.ImportStar) else node.names
            bound = [name] if stars else [f"{name}.{dotted(each.name)}" for each in parts]
            for each in (name, *bound):  # "from numba import cuda" is of numba.cuda
                self._visit_package(node, each, bound)
            if isinstance(node.names, cst.ImportStar) and "unknown name" in self.rules.shapes:
                for words in self.rules.words:
                    if f"{name}.".startswith(f"{words.module}."):
                        why = "it imports every name: import those that are used"
                        self.add(node, self.rules.shapes["unknown name"], left=why)
        return False

    def _visit_package(self, node: cst.CSTNode, name: str, bound: list[str]) -> None:
        first, _, rest = name.partition(".")
        for package in (first, f"{first}.{rest.partition('.')[0]}"):
            rule = self.rules.packages.get(package)
            if rule is not None and not self._tries:
                self._packages.append((frozenset(bound), node, rule))

    def note_packages(self) -> None:
        """Note the imports of packages that bind a name without a use that was found."""
        for bound, node, rule in self._packages:
            if any(
                not any(f"{each}.".startswith(f"{name}.") for each in self._named) for name in bound
            ):
                self.add(node, rule, left="no other package has its names")


def _sides(test: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The boolean operations in a test, without those inside of calls."""
    if isinstance(test, cst.BooleanOperation):
        yield test
        yield from _sides(test.left)
        yield from _sides(test.right)
