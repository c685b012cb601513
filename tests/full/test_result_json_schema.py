"""The published JSON Schema and the package agree on the form of a result document."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.runs.test_result_json_schema import MUTATIONS, fits, mutated, sample
from tests.unit.runs.test_result_json_schema import schema as schema


def test_what_the_schema_refuses_is_refused(schema: Any) -> None:
    random_ = random.Random(16)  # noqa: S311 - a choice, no secret
    refused = 0
    for _ in range(MUTATIONS):
        words, document = mutated(sample(), random_)
        if not schema.is_valid(document):
            refused += 1
            assert not fits(document), words
    assert refused > MUTATIONS / 4
