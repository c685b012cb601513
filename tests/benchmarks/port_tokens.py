"""What Python's own tokens have of CUDA in a folder, and how much of it the linter finds.

    python -m tests.benchmarks.port_tokens FOLDER... [--sample 40] [--seed 0]

It knows no rule of the linter: it counts the attribute ``cuda`` of ``torch``, calls of ``.cuda()``,
``is_cuda``, ``pynvml``, and texts that are a device, a library or a variable of CUDA. A use counts
as found if its statement has a finding. What has none is portable, or was missed: a sample is
printed, to be read by a person.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.train.port.lint import lint

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT: Final = re.compile(
    r"""[rbfuRBFU]*(['"]{1,3})(cuda(:\d+|:\{[^}]*\})?|cuda:|nccl|(CUDA|NCCL)_[A-Z_]+)\1"""
)
LEFT_OUT: Final = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)


def statements(path: Path) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each logical line."""
    line: list[tokenize.TokenInfo] = []
    with path.open("rb") as file:
        text = file.read().decode(errors="replace")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LEFT_OUT:
            line.append(token)
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            yield line
            line = []


def uses(line: list[tokenize.TokenInfo]) -> Iterator[tuple[str, tokenize.TokenInfo]]:
    """What a logical line has of CUDA: the kind, and the token."""
    words = ["", "", *(each.string for each in line), "", "", ""]
    for place, token in enumerate(line, 2):
        before, after = words[place - 2 : place], words[place + 1 : place + 3]
        if token.type == tokenize.NAME and token.string == "cuda" and before[1] == ".":
            if before[0] == "torch":
                if after != [".", "is_available"]:
                    yield "torch.cuda", token
            elif after[0] == "(":
                yield ".cuda()", token
        elif token.type == tokenize.NAME and token.string in ("is_cuda", "pynvml"):
            yield token.string, token
        elif token.type == tokenize.STRING and len(line) > 2 and TEXT.fullmatch(token.string):
            yield "a text", token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total: Counter[str] = Counter()
    found: Counter[str] = Counter()
    without = []
    for folder in given.folders:
        findings: dict[str, set[int]] = {}
        for finding in lint([str(folder)]).findings:
            findings.setdefault(str(finding.path), set()).add(finding.line)
        for path in sorted(folder.rglob("*.py")):
            try:
                every = list(statements(path))
            except (tokenize.TokenError, SyntaxError):
                continue
            for line in every:
                rows = {row for token in line for row in range(token.start[0], token.end[0] + 1)}
                for kind, token in uses(line):
                    total[kind] += 1
                    if rows & findings.get(str(path), set()):
                        found[kind] += 1
                    else:
                        without.append(f"{path}:{token.start[0]}: {token.line.strip()[:110]}")
    for kind, count in total.most_common():
        print(f"{kind:12} {count:6} uses, {found[kind]:6} in statements with a finding")
    chance = random.Random(given.seed)  # noqa: S311 - no secret
    chosen = chance.sample(without, min(given.sample, len(without)))
    print(f"{len(without)} without; {len(chosen)} of them:", *sorted(chosen), sep="\n")


if __name__ == "__main__":
    main()
