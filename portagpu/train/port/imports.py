"""The import of portagpu, and imports that nothing uses any more after a rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from portagpu.train.port.expressions import dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def with_import(module: cst.Module, alias: str) -> cst.Module:
    """``module`` with an import of portagpu behind that of torch, else before all others.

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


class _Used(cst.CSTVisitor):
    """The names that a module uses outside of its imports."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, str) and value.isidentifier():
            self.names.add(value)  # of __all__

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
