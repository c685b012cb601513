"""The analysis of one Python file, which ``lint`` and ``rewrite`` share.

:class:`Finder` visits the places of a module: calls, assignments, comparisons, assertions, gates.
:class:`Uses` collects what it finds there, and what a name alone shows.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

from portagpu.train.port.arguments import in_call
from portagpu.train.port.expressions import (
    Scope,
    Writer,
    code_of,
    dotted,
    last_name,
    last_statement,
    string,
)
from portagpu.train.port.places import (
    in_any,
    in_assignment,
    in_each,
    in_entry,
    in_return,
)
from portagpu.train.port.questions import (
    in_assert,
    in_attribute,
    in_build,
    in_code,
    in_command,
    in_comparison,
    in_if,
    in_subscript,
    in_text,
)
from portagpu.train.port.reading import excerpt, has_word
from portagpu.train.port.rules import Finding, Ignored, Unread, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.train.port.reading import Excerpt, Source
    from portagpu.train.port.rules import Name, Rule, Rules


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
        return self.look_up(node, self.scope.qualified(node))

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
            self._visit_package(node, name, bound)
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


class Finder(Uses):
    """Looks at the places where a device, a library or a capability can stand."""

    def visit_Call(self, node: cst.Call) -> None:
        self.called[node.func] = {each.keyword.value for each in node.args if each.keyword}
        in_call(self, node)
        in_text(self, node)
        in_build(self, node)
        in_code(self, node)
        in_command(self, node)

    def visit_Assign(self, node: cst.Assign) -> None:
        self._bare.add(node.value)
        for target in node.targets:
            entry = self.rules.names.get(self.scope.qualified(target.target))
            if isinstance(target.target, cst.Attribute) and entry is not None and entry.to:
                self.add(target.target, entry.rule, left="it is replaced here for all its callers")
            in_assignment(self, target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            in_assignment(self, node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        in_assignment(self, node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        in_each(self, last_name(node.target), node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        in_each(self, last_name(node.target), node.iter)

    def visit_Param(self, node: cst.Param) -> None:
        if node.default is not None:
            in_assignment(self, node.name, node.default)

    def visit_DictElement(self, node: cst.DictElement) -> None:
        self._bare.add(node.value)
        in_entry(self, node)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        in_comparison(self, node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        for each in node.bases:
            entry = self.rules.names.get(self.scope.qualified(each.value))
            if entry is not None:
                left = "a class derives from it, and portagpu's has none of its members"
                self.add(each.value, entry.rule, left=left)

    def visit_MatchValue(self, node: cst.MatchValue) -> bool:
        return False  # a pattern takes no call

    def visit_Subscript(self, node: cst.Subscript) -> bool:
        in_subscript(self, node)
        return last_name(node.value) != "Literal"

    def visit_ConcatenatedString(self, node: cst.ConcatenatedString) -> bool:
        for each in (node.left, node.right):  # the text is not whole, its expressions are
            if isinstance(each, cst.ConcatenatedString):
                self.visit_ConcatenatedString(each)
            for part in each.parts if isinstance(each, cst.FormattedString) else ():
                part.visit(self)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        if self._functions and self._functions[-1] is original_node:  # it was not passed over
            self._functions.pop()

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None and self._functions:
            in_return(self, last_name(self._functions[-1].name), node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        in_attribute(self, node)
        return super().visit_Attribute(node)

    def visit_Assert(self, node: cst.Assert) -> None:
        in_assert(self, node)

    def visit_If(self, node: cst.If) -> None:
        in_if(self, node)

    def visit_Expr(self, node: cst.Expr) -> bool:
        self._bare.add(node.value)
        return string(node.value) is None  # a docstring

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        in_any(self, node)
        self._text(node, string(node) or "")

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        in_any(self, node)
        first = node.parts[0] if node.parts else None
        if isinstance(first, cst.FormattedStringText):
            self._text(node, first.value)

    def _text(self, node: cst.BaseExpression, text: str) -> None:
        for each in self.rules.texts if text else ():
            if "python" in each.kinds and each.pattern.match(text):
                self.add(node, each.rule, left="this line does not say what the name is for")


class Analysis:
    """The uses in one file, without those that a comment ignores."""

    def __init__(self, source: Source, rules: Rules, part: Excerpt | None = None) -> None:
        """``part`` is what is read of it; None reads it all.

        Raises SyntaxError for what libcst cannot read.
        """
        try:
            module = cst.parse_module(source.text if part is None else part.text)
        except cst.ParserSyntaxError as error:
            raise SyntaxError(f"line {error.raw_line}: libcst cannot read it") from error
        self.wrapper: MetadataWrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.scope: Scope = Scope(rules, self.wrapper.resolve(ScopeProvider))
        if "*" in rules.imported.get(Path(source.path).stem, ()):
            self.scope.taken.add("pg")  # others get every short name of this file
        for name, path in rules.classes.items():
            if path != source.path and re.search(rf"\b{name}\b", source.text):
                self.scope.own_methods = f"{name} of {path}"
        module.visit(self.scope)
        finder = Finder(rules, self.scope)
        module.visit(finder)
        finder.note_packages()
        self.uses: list[Use] = self._with_places(finder.uses, source.text, part)

    def _with_places(self, uses: list[Use], text: str, part: Excerpt | None) -> list[Use]:
        if not uses:
            return []
        places, ignored = self.wrapper.resolve(PositionProvider), Ignored(lines_of(text))
        placed = []
        for use in uses:
            start = places[use.node].start
            line = start.line if part is None else part.numbers[start.line - 1]
            if not ignored.has(line, use.rule.id):
                placed.append(replace(use, line=line, column=start.column + 1))
        return placed


def parse(text: str) -> ast.Module:
    """The syntax of Python 3. Raises SyntaxError with one sentence for other text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the file's escapes and literals
        try:
            return ast.parse(text)
        except SyntaxError as error:
            words = (error.msg or "").lower()
            if "missing parentheses in call to 'print'" in words or "exec'" in words:
                raise SyntaxError(
                    "is Python 2: translate it first (2to3 of Python 3.12)"
                ) from error
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            why = f"is not Python {version}: line {error.lineno}, {error.msg}"
            raise SyntaxError(why) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise SyntaxError("is nested too deeply to be read") from error


_RUNS_TEXT: Final = re.compile(r"(?<![.\w])(?:exec|eval)\(|\bsubprocess\b|\bos\.(?:system|popen)")


def analyse(source: Source, rules: Rules, *, whole: bool) -> Analysis | Unread | None:
    """The uses in ``source``; None where no word of a rule is in it.

    Not ``whole`` leaves out the statements without one, which is faster; a rewrite needs them all.
    """
    if not has_word(source.text):
        return None
    try:
        tree = parse(source.text)
        # what stands between two seeds counts, and a text that is run may have a name
        whole |= "manual_seed" in source.text or _RUNS_TEXT.search(source.text) is not None
        return Analysis(source, rules, None if whole else excerpt(source.text, tree))
    except SyntaxError as error:
        return Unread(source.path, str(error))
    except RecursionError:
        return Unread(source.path, "is nested too deeply to be read")


def finding(path: str, use: Use) -> Finding:
    """The use as a finding."""
    return Finding(path, use.line, use.column, use.rule, use.code, use.left)
