"""Replaces what can be decided; the rest of a file stays as it is, byte for byte.

It adds the import of portagpu, and removes imports that nothing uses any more.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from portagpu.base.errors import OutputError
from portagpu.base.files import write_parts
from portagpu.base.text import error_line, escaped
from portagpu.train.port.analysis import Analysis, analyse, finding, parse
from portagpu.train.port.expressions import dotted
from portagpu.train.port.reading import Source, files, no_report, read
from portagpu.train.port.rules import Finding, Unread, in_order, load_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from portagpu.train.port.reading import Report
    from portagpu.train.port.rules import Rules
    from portagpu.train.port.uses import Use


_LINES: Final = re.compile(rb"[^\n]*\n|[^\n]+\Z")
"""Lines as ``diff`` and ``patch`` count them, which a carriage return by itself does not end."""
_QUOTED: Final = re.compile(rb'[\x00-\x1f\x7f"\\]')


@dataclass(frozen=True, slots=True)
class Rewritten:
    """One file: its new text, what was replaced in it, and what was left with the reason."""

    source: Source
    text: str
    done: list[Finding]
    left: list[Finding]

    @property
    def is_changed(self) -> bool:
        """Whether the text differs."""
        return self.text != self.source.text

    @property
    def diff(self) -> bytes:
        """The change in unified form, byte for byte as ``patch`` applies it; or empty."""
        before, after = map(_LINES.findall, (self.source.data, self.data))
        made = difflib.diff_bytes(difflib.unified_diff, before, after)
        hunks = [*made][2:]
        if not hunks:
            return b""
        name = _name_of_patch(self.source.path)
        return b"".join(
            line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
            for line in (b"--- %s\n" % name, b"+++ %s\n" % name, *hunks)
        )

    @property
    def shown_diff(self) -> str:
        """:attr:`diff` for a terminal: what the source could make it do is escaped."""
        *names, hunks = self.diff.split(b"\n", 2)
        lines = [
            *map(os.fsdecode, names),
            *hunks.decode(self.source.encoding, "replace").split("\n"),
        ]
        # a line's end stays one, also that of other systems
        return "\n".join(escaped(line.removesuffix("\r")) for line in lines)

    def write(self) -> None:
        """Replace the file at once, with its encoding and permissions.

        Raises OutputError, with the file as it was, if it changed since it was read or cannot be
        written.
        """
        path = Path(self.source.path)
        try:
            data, mode = path.read_bytes(), path.stat().st_mode & 0o7777
        except OSError as error:
            raise OutputError(f"{path} cannot be read any more: {error.strerror}") from error
        if data != self.source.data:
            raise OutputError(f"{path} changed while it was read: run the command again")
        if not (mode & 0o222 and os.access(path, os.W_OK)):  # a rename would replace it
            raise OutputError(f"{path} is read-only")
        write_parts(path, [self.data])
        path.chmod(mode)

    @property
    def data(self) -> bytes:
        """The new text as bytes."""
        return self.text.encode(self.source.encoding)


@dataclass(slots=True)
class Rewriting:
    """All files of one call."""

    files: list[Rewritten] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def changed(self) -> list[Rewritten]:
        """The files with a change."""
        return [each for each in self.files if each.is_changed]

    @property
    def left(self) -> list[Finding]:
        """What no rewrite decided, in order."""
        return in_order(each for file in self.files for each in file.left)

    def write(self) -> None:
        """Write every file that changed; one that cannot be written stays, and gets a reason."""
        for each in self.changed:
            try:
                each.write()
            except OutputError as error:
                self.files.remove(each)
                self.unread.append(Unread(each.source.path, f"stays as it is: {error}"))

    @property
    def exit_code(self) -> int:
        """As of lint, over what is left."""
        if any(each.rule.severity != "slower" for each in self.left):
            return 1
        return 3 if self.unread else 0


def _name_of_patch(path: str) -> bytes:
    """The name as GNU's ``patch`` reads it: quoted as in C, or before a tab if it has blanks."""
    name = os.fsencode(path)
    if _QUOTED.search(name) is not None:
        return b'"%s"' % _QUOTED.sub(lambda match: b"\\%03o" % ord(match[0]), name)
    return name + b"\t" * (b" " in name)


def rewrite(paths: Sequence[str], *, unsafe: bool = False, report: Report = no_report) -> Rewriting:
    """Rewrite the Python files that ``paths`` name or hold, in memory.

    ``unsafe`` adds the rewrites that may change what a program computes on the GPU that it was
    written for. Raises MissingDependency without libcst.
    """
    result, has_python = Rewriting(), False
    named = {*map(Path, paths)}
    sources = [(path, read(path)) for path in files(paths)]
    rules = _with_classes(load_rules(), [each for _, each in sources])
    others = {each for path in named if path.is_file() for each in path.parent.glob("*.py")}
    texts = [*map(read, sorted(others - {path for path, _ in sources}))]
    rules = replace(rules, imported=_imported([*texts, *(each for _, each in sources)]))
    for number, (path, source) in enumerate(sources, 1):
        report(number, len(sources))
        if not isinstance(source, Source):
            result.unread.append(source)
        elif source.kind == "python":
            has_python = True
            if source.is_generated:
                result.unread.append(Unread(source.path, "is generated: rewrite what writes it"))
                continue
            new = rewrite_source(source, rules, unsafe=unsafe)
            if isinstance(new, Unread):
                result.unread.append(new)
            elif new is not None:
                result.files.append(new)
        elif path in named:
            result.unread.append(Unread(source.path, "is not Python: only Python is rewritten"))
    if not has_python and not result.unread:
        why = "is a folder without a Python file, and only Python is rewritten: no file was read"
        result.unread += [Unread(path, why) for path in paths]
    return result


def _with_classes(rules: Rules, sources: Sequence[Source | Unread]) -> Rules:
    """The rules, and the program's classes that have a method of a device's name."""
    found: dict[str, str] = {}
    devices = {each.device for each in rules.words}
    method = re.compile(rf"\bdef (?:{'|'.join(map(re.escape, devices))})\(")
    for source in sources:
        if not isinstance(source, Source) or source.kind != "python":
            continue
        with suppress(SyntaxError):
            tree = parse(source.text) if method.search(source.text) else ast.Module([], [])
            for each in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
                if devices & {getattr(part, "name", "") for part in each.body}:
                    found[each.name] = source.path
    return replace(rules, classes=found)


_FROM: Final = re.compile(
    r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]*(\*|\([^)]*\)|[^\n#;]+)", re.MULTILINE
)


def _imported(sources: Sequence[Source | Unread]) -> dict[str, set[str]]:
    """What the program's files import from its modules, by the module's last name."""
    found: dict[str, set[str]] = {}
    for source in sources:
        text = source.text if isinstance(source, Source) and source.kind == "python" else ""
        for module, names in _FROM.findall(text):
            parts = re.sub(r"#[^\n]*", "", names).strip("() \t").split(",")
            words = {each.split()[0] for each in parts if each.split()}
            found.setdefault(module.rpartition(".")[2], set()).update(words)
    return found


def rewrite_source(source: Source, rules: Rules, *, unsafe: bool) -> Rewritten | Unread | None:
    """One file, or why it was not read; None where nothing of a rule is in it."""
    found = analyse(source, rules, whole=True)
    if found is None or isinstance(found, Unread):
        return found
    chosen: list[Use] = []
    left: list[Finding] = []
    fixes = ("safe", "unsafe") if unsafe else ("safe",)
    data = _is_configuration(found.wrapper.module)
    for use in found.uses:
        if data:
            left.append(replace(finding(source.path, use), left=_DATA))
        elif use.replace is not None and use.rule.fix in fixes:
            chosen.append(use)
        else:
            left.append(replace(finding(source.path, use), left=_reason(use)))
    if not chosen:
        return Rewritten(source, source.text, [], left)
    same = found.wrapper.module.code  # without the end of a last line that ends with "\r"
    if not source.text.startswith(same):
        return Unread(source.path, "is not given back by libcst as it is")
    taken = rules.imported.get(Path(source.path).stem, set())
    new = _Attempt(source, found, chosen, taken)
    if new.why:
        refused = _refused(source, found, chosen)
        for use in refused:
            why = f"it cannot be written in this place ({_Attempt(source, found, [use], ()).why})"
            left.append(replace(finding(source.path, use), left=why))
        chosen = [use for use in chosen if use not in refused]
        new = _Attempt(source, found, chosen, taken)
    if new.why:
        return Unread(source.path, f"would not be Python any more ({new.why}): please report it")
    return Rewritten(source, new.text, [finding(source.path, use) for use in chosen], left)


_DATA: Final = "the file only assigns values: a program may read its names as data"


def _is_configuration(module: cst.Module) -> bool:
    """Whether it imports and defines nothing, and assigns calls of dict, as OpenMMLab's do.

    Every name of such a file is a setting for the program, which an import would add to.
    """
    small = [each for line in module.body if isinstance(line, cst.SimpleStatementLine)
             for each in line.body]  # fmt: skip
    if any(not isinstance(line, cst.SimpleStatementLine) for line in module.body) or any(
        not isinstance(each, cst.Assign | cst.Expr) for each in small
    ):
        return False
    values = [each.value for each in small if isinstance(each, cst.Assign)]
    return any(dotted(each.func) == "dict" for each in values if isinstance(each, cst.Call))


class _Attempt:
    """The file with these uses replaced, or why the result is not a program."""

    def __init__(
        self, source: Source, found: Analysis, chosen: list[Use], taken: Collection[str]
    ) -> None:
        self.text, self.why = source.text, ""
        if not chosen:
            return
        rest = source.text[len(found.wrapper.module.code) :]
        try:
            text = _replaced(source.path, found, chosen, taken) + rest
            parse(text)
            text.encode(source.encoding)
        except Exception as error:  # noqa: BLE001 - whatever libcst or a rule cannot write
            self.why = error_line(error)
        else:
            self.text = text


def _refused(source: Source, found: Analysis, chosen: list[Use]) -> list[Use]:
    """The uses that cannot be written where they stand, such as quotes inside an f-string."""
    if not _Attempt(source, found, chosen, ()).why:
        return []
    if len(chosen) == 1:
        return chosen
    half = len(chosen) // 2
    return [
        each for part in (chosen[:half], chosen[half:]) for each in _refused(source, found, part)
    ]


def _reason(use: Use) -> str:
    return use.left or "it may change what the program computes: --unsafe does it"


def _replaced(path: str, found: Analysis, chosen: list[Use], taken: Collection[str]) -> str:
    changes = {use.node: use.replace for use in chosen if use.replace is not None}
    module = found.wrapper.module
    new = module.visit(_Replacer(changes))
    assert isinstance(new, cst.Module)  # noqa: S101 - the replacer keeps the module
    if Path(path).name != "__init__.py" and "*" not in taken:  # whose imports are for others
        new = without_unused_imports(new, _roots(chosen) - {*taken})
    if not found.scope.has_import and _names(new, found.scope.alias):
        new = with_import(new, found.scope.alias)
    return new.code


def _roots(chosen: list[Use]) -> set[str]:
    """The names in what was replaced, by which its imports are found."""
    nodes = [each for use in chosen for each in (use.node, getattr(use.node, "func", use.node))]
    return {dotted(node).partition(".")[0] for node in nodes if dotted(node)}


class _Replacer(cst.CSTTransformer):
    def __init__(self, changes: dict[cst.CSTNode, Callable[[Any], cst.CSTNode]]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated: Any = super().on_leave(original_node, updated_node)
        replace = self._changes.get(original_node)
        if replace is None:
            return updated
        new = replace(updated)
        if {*_comments(updated)} - {*_comments(new)}:
            raise ValueError("a comment would be lost")
        brackets = getattr(updated, "lpar", ())
        if brackets and new is not updated and not getattr(new, "lpar", ()):
            new = new.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        return new


def _comments(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Comment):
        yield node.value
    for child in node.children:
        yield from _comments(child)


def _names(module: cst.Module, alias: str) -> bool:
    return f"{alias}." in module.code


def with_import(module: cst.Module, alias: str) -> cst.Module:
    """``module`` with an import of portagpu after that of torch, or before all others.

    It stands before the first statement that uses it.
    """
    code = "import portagpu" if alias == "portagpu" else f"import portagpu as {alias}"
    line = cst.parse_statement(code)
    body = list(module.body)
    at = 0
    for number, each in enumerate(body):
        small = each.body if isinstance(each, cst.SimpleStatementLine) else ()
        used = _Used()
        each.visit(used)
        if alias in used.names:
            break
        if number == at and small and _comes_first(small[0]):
            at = number + 1
        if any(isinstance(part, cst.Import) and _imports_torch(part) for part in small):
            at = number + 1
            break
    return module.with_changes(body=[*body[:at], line, *body[at:]])


def _imports_torch(node: cst.Import) -> bool:
    return any(dotted(each.name) == "torch" for each in node.names)


def _comes_first(node: cst.BaseSmallStatement) -> bool:
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)
    return isinstance(node, cst.ImportFrom) and dotted(node.module or node) == "__future__"


def without_unused_imports(module: cst.Module, names: Collection[str]) -> cst.Module:
    """``module`` without the imports at its top that bind one of ``names`` and have no use.

    The comments and empty lines above such an import stay. "import torch.cuda" stays, for it binds
    torch.
    """
    used = _Used()
    module.visit(used)
    unused = {*names} - used.names
    body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
    above: list[cst.EmptyLine] = []
    for each in module.body:
        kept = _without(each, unused) if isinstance(each, cst.SimpleStatementLine) else each
        if kept is None:
            above.extend(each.leading_lines)
        else:
            lines = _joined(above, kept.leading_lines)
            body.append(kept.with_changes(leading_lines=lines) if above else kept)
            above = []
    return module.with_changes(body=body)


def _joined(above: list[cst.EmptyLine], own: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    has_comment = any(each.comment is not None for each in above)
    return [*above, *own] if has_comment or not own else [*own]


def _without(
    line: cst.SimpleStatementLine, unused: Collection[str]
) -> cst.SimpleStatementLine | None:
    kept = [new for each in line.body if (new := _without_names(each, unused)) is not None]
    return line.with_changes(body=kept) if kept else None


def _without_names(
    node: cst.BaseSmallStatement, unused: Collection[str]
) -> cst.BaseSmallStatement | None:
    if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return node
    kept = [each for each in node.names if _bound(each) not in unused]
    if len(kept) == len(node.names):
        return node
    if not kept:
        return None
    if isinstance(node, cst.Import) or node.rpar is None:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=kept)


def _bound(alias: cst.ImportAlias) -> str:
    return dotted(alias.name) if alias.asname is None else dotted(alias.asname.name)


_WORD: Final = re.compile(r"[^\W\d]\w*")
_EXPRESSION: Final = re.compile(r"""[\w.,|()\[\]"'= ]+""")


class _Used(cst.CSTVisitor):
    """The names that a module uses outside of its imports."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_Expr(self, node: cst.Expr) -> bool:
        return not isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, str) and _EXPRESSION.fullmatch(value):
            self.names |= {*_WORD.findall(value)}  # of __all__, and of types in quotes

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False
