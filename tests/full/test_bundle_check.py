"""More mutations of a bundle."""

from __future__ import annotations

import pytest

from tests.process.test_bundle_check import BUSY, check_of_busy_texts, mutations_are_refused
from tests.support.bundle_samples import bundle


def test_no_mutation_makes_the_validator_break() -> None:
    mutations_are_refused(bundle(), 1500)


@pytest.mark.parametrize("text", BUSY[1:])
def test_a_bundle_of_texts_that_keep_patterns_busy_is_validated(text: str) -> None:
    check_of_busy_texts(text)
