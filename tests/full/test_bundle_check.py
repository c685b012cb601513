"""More mutations of a bundle."""

from __future__ import annotations

from tests.process.test_bundle_check import mutations_are_refused
from tests.support.bundle_samples import bundle


def test_no_mutation_makes_the_validator_break() -> None:
    mutations_are_refused(bundle(), 1500)
