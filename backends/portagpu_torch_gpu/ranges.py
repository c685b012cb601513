"""Ranges through the calls that torch was built with, whichever vendor's they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from portagpu.facts.captures.labels import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.captures.labels import Label


class TorchRanges:
    """``torch.cuda.nvtx``: no domains and no payloads, so both are in the text."""

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        del color
        torch.cuda.nvtx.range_push(in_text(name, labels, domain))

    def pop(self, domain: str) -> None:
        del domain
        torch.cuda.nvtx.range_pop()

    def mark(self, name: str) -> None:
        torch.cuda.nvtx.mark(for_c(name))


def in_text(name: str, labels: Mapping[str, Label], domain: str = "") -> str:
    """The text of a range for a tool that takes no more; a name alone is left as it is."""
    return encode(name, labels, domain) if labels or domain else for_c(name)


def for_c(name: str) -> str:
    """``name`` as C can take it: without null characters and lone surrogates."""
    return name.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
