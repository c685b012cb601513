"""What the book adds to its pages: the navigation, and the reference of the Python API."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from facts import facts, sources

import portagpu
from portagpu.base.lazy import stub_names

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
LINK: Final = re.compile(r"(?<!!)\[([^]\n]+)\]\(([^)#:\s]+)\)")
"""A link to a file or a folder of the repository."""
MARK: Final = re.compile(r"^<!-- book: (\w+)((?: [\w-]+)*) -->$", re.MULTILINE)
"""Stands in a page for a part of ``PARTS``, with its arguments. On GitHub it is not seen."""
_SUBMODULES: Final = "portagpu"
"""From here the stub of ``portagpu`` imports modules, and not names of a module."""
_MORE: Final = ("portagpu.kernels", "portagpu.placement", "portagpu.sizing")
"""Public modules that ``import portagpu`` does not name. ``collectives`` needs torch, and
``precision`` has a ``Recipe`` as ``planning`` has, which links could not distinguish."""
_CONTRACT: Final = ("portagpu.devices.contract", "portagpu.devices.optional")


def groups() -> dict[str, list[str]]:
    """Title of a group -> its pages that exist, relative to the repository, without ".md"."""
    rows = tomllib.loads(Path(__file__).with_name("nav.toml").read_text("utf-8"))["group"]
    return {
        row["title"]: [page for page in row["pages"] if (ROOT / f"{page}.md").is_file()]
        for row in rows
    }


def navigation() -> str:
    """One hidden table of contents for each group."""
    return "\n".join(
        _fence("toctree", ":hidden:", f":caption: {title}", "", *map(_entry, pages))
        for title, pages in groups().items()
    )


def _entry(page: str) -> str:
    # its heading is the one of the whole book
    return "README </README>" if page == "README" else f"/{page}"


def names() -> str:
    """Every name of ``import portagpu`` under the module that has it, then its submodules.

    The names of the contract have a page of their own, and no name is there twice.
    """
    homes: dict[str, list[str]] = {}
    for name, home in stub_names(portagpu.__spec__).items():
        if home not in _CONTRACT:
            homes.setdefault(home, []).append(name)
    submodules = [f"portagpu.{name}" for name in homes.pop(_SUBMODULES)] + [*_MORE]
    homes = {home: each for home, each in homes.items() if home not in submodules}
    return "\n".join(
        [
            *(_module(home, each, "portagpu") for home, each in homes.items()),
            *(
                _module(name, _names(name, set().union(*homes.values())), name)
                for name in submodules
            ),
        ]
    )


def _names(module: str, but: Container[str]) -> list[str]:
    """The public names of a submodule, without those in ``but`` and without modules."""
    found = import_module(module)
    return [
        name
        for name in found.__all__
        if name not in but and not inspect.ismodule(getattr(found, name))
    ]


def contract() -> str:
    """What a backend is made of."""
    return "\n".join(
        f"## {name}\n\n{_fence('eval-rst', f'.. automodule:: {name}', '   :members:')}"
        for name in _CONTRACT
    )


def _module(home: str, names: Sequence[str], public: str) -> str:
    """A module's docstring and those of ``names``, which users import from ``public``."""
    lines = [f".. automodule:: {home}", ""]
    for name in names:
        found = getattr(import_module(home), name)
        if inspect.isclass(found):
            lines += [f".. autoclass:: {public}.{name}", "   :members:"]
        elif callable(found):
            lines += [f".. autofunction:: {public}.{name}"]
        else:
            lines += [f".. autodata:: {_states(name, found)}.{name}"]
        lines.append("")
    title = home if home == public else f"{public}: {home.rpartition('.')[2].replace('_', ' ')}"
    return f"## {title}\n\n{_fence('eval-rst', *lines)}"


def _states(name: str, value: object) -> str:
    """The module that states a constant: only there is its docstring."""
    return next(
        module
        for module, found in sorted(sys.modules.items())
        if module.startswith("portagpu.")
        and getattr(found, name, None) is value
        and name in inspect.get_annotations(found)
    )


def _fence(directive: str, *lines: str) -> str:
    return "\n".join([f"```{{{directive}}}", *lines, "```", ""])


PARTS: Final[Mapping[str, Callable[..., str]]] = {
    "navigation": navigation,
    "names": names,
    "contract": contract,
    "facts": facts,
    "sources": sources,
}


def fill(text: str, folder: Path) -> str:
    """A page of ``folder`` as the book has it.

    Each mark becomes its part. A link to a folder, which GitHub shows as a list of files, leads to
    the folder's README; where there is none, its text stands alone.
    """
    text = LINK.sub(lambda found: _without_folder(found, folder), text)
    return MARK.sub(lambda found: PARTS[found[1]](*found[2].split()), text)


def _without_folder(link: re.Match[str], folder: Path) -> str:
    text, place = link.groups()
    if not (folder / place).is_dir():
        return link[0]
    if (folder / place / "README.md").is_file():
        return f"[{text}]({place.rstrip('/')}/README.md)"
    return text
