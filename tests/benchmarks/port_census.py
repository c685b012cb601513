"""What ``portagpu port rewrite --unsafe`` does with each use of a GPU in public repositories.

    python -m tests.benchmarks.port_census FOLDER... [--read] [--diffs]

Each FOLDER is a repository. Uses are counted by syntax trees, by a list that knows no rule of the
port. A use is rewritten, left with a reason, or without a finding; of the last, those that stand
under a question for a GPU, are compared, are an import in a ``try``, or a setting that a CPU
ignores are counted apart. ``--read`` prints the rest, and ``--diffs`` what was rewritten.
A file counts as broken if the rewritten text is not a program, if a second rewrite changes it, or
if a comment of it changed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.train.port.analysis import parse
from portagpu.train.port.reading import Source, files, read
from portagpu.train.port.rewrite import Rewritten, _with_classes, rewrite_source
from portagpu.train.port.rules import Unread, load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.rules import Rules

DEVICE: Final = re.compile(r"cuda(?::\d*)?\Z|cuda:[{%]")
VARIABLE: Final = re.compile(r"(?:CUDA|NCCL)_[A-Z_]+\Z")
PACKAGES: Final = {
    *("apex", "amp_C", "triton", "deepspeed", "flash_attn", "xformers", "bitsandbytes", "nvtx"),
    *("transformer_engine", "mamba_ssm", "causal_conv1d", "vllm", "cupy", "pynvml", "pycuda"),
    *("tensorrt", "cutlass", "nvidia", "flashinfer"),
}
QUESTIONS: Final = re.compile(r"is_available|is_cuda\b|cuda|gpu|GPU|device_type|\.type\b")


@dataclass(frozen=True)
class Use:
    """One use: its class, its lines, the line of its statement, and whether it can do no harm."""

    kind: str
    first: int
    last: int
    statement: int
    harmless: str


class Counted(ast.NodeVisitor):
    """All uses in one file."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._above: list[ast.AST] = []
        self._statement = 0

    def visit(self, node: ast.AST) -> None:
        kind = kind_of(node)
        before = self._statement
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
        if kind:
            line, end = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
            self.uses.append(Use(kind, line, end, self._statement, self._harmless(node, kind)))
        self._above.append(node)
        if not (kind.startswith("torch.") and isinstance(node, ast.Attribute)):
            self.generic_visit(node)
        self._above.pop()
        self._statement = before

    def _harmless(self, node: ast.AST, kind: str) -> str:
        if kind == "torch.cuda.is_available" or kind == "torch.backends.cudnn":
            return "question or setting"
        child = node
        for each in reversed(self._above):
            if isinstance(each, ast.If | ast.IfExp) and child is not each.test:
                if QUESTIONS.search(ast.unparse(each.test)):
                    return "under a question"
            elif isinstance(each, ast.Compare):
                return "compared"
            elif isinstance(each, ast.BoolOp) and "is_available" in ast.unparse(each):
                return "under a question"
            elif isinstance(each, ast.Try) and isinstance(node, ast.Import | ast.ImportFrom):
                return "import in a try"
            child = each
        return ""


def kind_of(node: ast.AST) -> str:
    """The class of a use; empty for what is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if DEVICE.match(node.value):
            return "device string"
        if node.value == "nccl" or node.value.endswith(":nccl"):
            return '"nccl"'
        if VARIABLE.match(node.value):
            return "variable"
        return "out of memory" if "out of memory" in node.value and len(node.value) < 40 else ""
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node) if isinstance(node.value, ast.Name | ast.Attribute) else ""
        for known in ("torch.cuda.is_available", "torch.cuda.amp", "torch.backends.cudnn"):
            if name.startswith(known):
                return known
        for known in ("torch.backends.cuda", "torch.version", "torch.cuda", "torch.accelerator"):
            if name.startswith(f"{known}."):
                return known
        return "is_cuda" if node.attr == "is_cuda" else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("cuda", "pin_memory", "record_stream"):
            return f".{node.func.attr}()"
        text = ast.unparse(node.func)
        return "torch.autocast" if text in ("torch.autocast", "torch.amp.autocast") else ""
    if isinstance(node, ast.keyword):
        if node.arg in ("device_ids", "output_device"):
            return "device_ids"
        pinned = isinstance(node.value, ast.Constant) and node.value.value is True
        return "pin_memory=" if node.arg == "pin_memory" and pinned else ""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return _imported([node.module or ""])
    return _imported([each.name for each in node.names]) if isinstance(node, ast.Import) else ""


def _imported(names: list[str]) -> str:
    if any(name.partition(".")[0] in PACKAGES for name in names):
        return "package"
    return "from torch.cuda" if any(f"{name}.".startswith("torch.cuda.") for name in names) else ""


def comments(text: str) -> list[str]:
    """Every comment of a program, in order."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [each.string for each in tokens if each.type == tokenize.COMMENT]


def broken(new: Rewritten, rules: Rules) -> str:
    """Why the rewritten file is not what it should be, or nothing."""
    try:
        parse(new.text)
    except SyntaxError as error:
        return str(error)
    if comments(new.text) != comments(new.source.text):
        return "a comment changed"
    again = rewrite_source(replace(new.source, text=new.text, data=new.data), rules, unsafe=True)
    same = again is None or (isinstance(again, Rewritten) and not again.is_changed)
    return "" if same else "a second rewrite changes it"


def census(folder: Path, table: dict[str, Counter[str]], words: set[str]) -> Iterator[str]:
    """Count one repository into ``table``; what is to be read comes back."""
    sources = [(path, read(path)) for path in files([str(folder)])]
    rules = _with_classes(load_rules(), [each for _, each in sources])
    for path, source in sources:
        if isinstance(source, Unread) or source.kind != "python":
            continue
        try:
            counted = Counted()
            counted.visit(parse(source.text))
        except (SyntaxError, RecursionError):
            yield f"{path}: not counted: it is not Python 3"
            continue
        new = rewrite_source(source, rules, unsafe=True)
        if isinstance(new, Unread):
            yield f"{path}: not rewritten: {new.why}"
            continue
        yield from _of_file(source, counted.uses, new, table, words)
        if new is not None and new.is_changed:
            why = broken(new, rules)
            table["files"]["broken" if why else "changed"] += 1
            if why:
                yield f"{path}: BROKEN: {why}"
            if "--diffs" in words:
                yield new.diff.decode(errors="replace")


def _of_file(
    source: Source,
    uses: list[Use],
    new: Rewritten | None,
    table: dict[str, Counter[str]],
    words: set[str],
) -> Iterator[str]:
    done = {each.line for each in new.done} if new else set[int]()
    left = {each.line for each in new.left} if new else set[int]()
    lines = source.text.splitlines()
    for use in uses:
        span = {*range(use.first, use.last + 1)}
        wide = {*range(use.statement, use.last + 1)}
        if span & done:
            answer = "rewritten"
        elif span & left or (not use.harmless and wide & left):
            answer = "left"
        elif not use.harmless and wide & done:
            answer = "rewritten"
        else:
            answer = use.harmless or "not found"
        table[use.kind][answer] += 1
        if answer == "not found" and "--read" in words:
            yield f"{source.path}:{use.first}: {use.kind}: {lines[use.first - 1].strip()}"


def main() -> None:
    """Print the counts."""
    words = {each for each in sys.argv[1:] if each.startswith("--")}
    table: dict[str, Counter[str]] = defaultdict(Counter)
    folders = [Path(each) for each in sys.argv[1:] if each not in words]
    for folder in folders:
        for line in census(folder, table, words):
            print(line)
    total: Counter[str] = Counter()
    for kind, counts in sorted(table.items()):
        if kind != "files":
            total.update(counts)
        print(f"{kind}: {sum(counts.values())}: {dict(counts.most_common())}")
    print(f"{len(folders)} repositories, {sum(total.values())} uses: {dict(total.most_common())}")


if __name__ == "__main__":
    main()
