"""What the search of operators leaves in a process that uses torch for other things."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


@pytest.mark.parametrize(
    "use",
    [
        "samples.laid(torch.ones(2, 3), 'spread')",
        "samples._modules()",
        "samples.changed(Sample(), lambda value: value)",
    ],
)
def test_torchs_switches_can_be_set_after_the_first_use(
    child: Callable[..., Child], use: str
) -> None:
    """Importing torch.testing._internal.common_utils forbids it (torch 2.13)."""
    code = (
        "import torch\n"
        "from portagpu.suites.search.operators import samples\n"
        "class Sample:\n"
        "    input, args, kwargs, output_process_fn_grad = torch.ones(1), (), {}, None\n"
        f"{use}\n"
        "torch.backends.cudnn.deterministic = True\n"
        "print(torch.backends.cudnn.deterministic)\n"
    )
    assert child("-c", code).ok() == "True\n"
