"""What is left out before libcst reads a file: no finding changes by it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("libcst")
from typing import Final

from portagpu.train.port.reading import Source, files, has_word, read
from tests.conftest import ROOT
from tests.unit.train.test_port_screen import both

SAMPLES: Final = ROOT / "tests/support/port_samples"


def same_uses(step: int) -> int:
    """Compare each ``step``-th of torch's own modules, which name its devices in every way."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("needs the sources of an installed torch")
    folder = Path(spec.origin).parent
    chosen = [*sorted((folder / "distributed").rglob("*.py"))[::8], *sorted(folder.glob("*.py"))]
    compared = 0
    for path in chosen[::step]:
        source = read(path)
        if isinstance(source, Source) and has_word(source.text):
            screened, whole = both(source)
            assert screened == whole, path
            compared += 1
    return compared


def test_public_code_has_the_same_uses() -> None:
    assert same_uses(step=6) > 3


@pytest.mark.parametrize(
    "path", [each for each in files([str(SAMPLES)]) if each.suffix == ".py"], ids=lambda p: p.name
)
def test_samples_have_the_same_uses(path: Path) -> None:
    source = read(path)
    assert isinstance(source, Source)
    screened, whole = both(source)
    assert screened == whole
