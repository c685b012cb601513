"""The pytest plugin of a child that runs PyTorch's own tests: it makes and describes them.

The device is open before torch makes its tests, because a backend may bring a device type.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.runs.results.verdicts import Evidence
from portagpu.suites.conformance.fixtures import SESSION, outcome_of_error
from portagpu.suites.conformance.messages import ListedCase
from portagpu.suites.conformance.upstream import SUITE

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTION: Final = "--portagpu-upstream"
"""The backend and the index of the device: ``OPTION=cuda:0``."""
_ONLY_FOR: Final = "PYTORCH_TESTING_DEVICE_ONLY_FOR"
"""Read by ``instantiate_device_type_tests`` (torch/testing/_internal/common_device_type.py)."""
_MAX_REASON: Final = 400


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the device."""
    parser.getgroup("portagpu").addoption(OPTION, required=True, metavar="BACKEND:INDEX")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the device, and have torch make tests of its type alone."""
    session = config.stash[SESSION]
    session.backend, _, index = config.getoption(OPTION).rpartition(":")
    session.index = int(index)
    session.upstream = True
    # torch.testing reads options of its own from there
    del sys.argv[1:]
    sys.path.insert(0, str(config.rootpath))
    # that it cannot be opened is said when the suite asks for it
    with suppress(Exception):
        os.environ[_ONLY_FOR] = _type_in_torch(session.device().device.type)


def _type_in_torch(kind: str) -> str:
    """The type of device as torch's tests name it."""
    import torch

    own = kind == torch._C._get_privateuse1_backend_name()
    return "privateuse1" if own else kind


def listed(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, ListedCase]]:
    """The tests of the type of device, and all of a file that makes none for types."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    def of_type(item: pytest.Item) -> bool:
        return issubclass(getattr(item, "cls", None) or object, DeviceTypeTestBase)

    files = {item.path for item in items if of_type(item)}
    for item in items:
        if item.path in files and not of_type(item):
            continue
        kind = getattr(item, "cls", None)
        parts = (item.path.stem, *([kind.__name__] if kind else []), item.name)
        yield (
            item,
            ListedCase(
                id="/".join((SUITE, *parts)),
                area=SUITE,
                spec=f"PyTorch's own test {'.'.join(parts[1:])} of {item.path.name} passes.",
                function=f"{item.path.name}::{'::'.join(parts[1:])}",
                per_device=True,
                evidence=Evidence.EXECUTED if of_type(item) else Evidence.LOADED,
            ),
        )


def outcome(when: str | None, error: BaseException) -> tuple[str, str]:
    """The kind of outcome and its reason: what torch skips or expects to fail is not judged."""
    text = " ".join(str(error).split())[:_MAX_REASON]
    if isinstance(error, pytest.skip.Exception):
        return "not-claimed", f"torch skips it: {text}"
    if isinstance(error, pytest.xfail.Exception):
        return "not-claimed", f"torch expects it to fail: {text}"
    kind, reason = outcome_of_error(when, error)
    if kind in ("failed", "raised") and text:
        return kind, text if kind == "failed" else f"raised {type(error).__name__}: {text}"
    return kind, reason
