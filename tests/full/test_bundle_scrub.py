"""Scrubbing: what identifies is taken out of every text, and what does not is left."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.redact.scrub import scrub
from tests.support.result_samples import failing
from tests.unit.reports.test_bundle_scrub import KNOWN, SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator


def strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from strings(item, (*path, index))


def planted(document: Any, path: tuple[Any, ...], text: str) -> Any:
    changed = copy.deepcopy(document)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = text
    return changed


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_planted_in_any_text_of_a_result_is_found(secret: str) -> None:
    document = failing().to_json()
    document["run"]["devices"] = document["run"]["devices"][:2]
    document["results"] = [document["results"][index] for index in (0, 9, -1)]
    places = [path for path, _ in strings(document)]
    assert len(places) > 50, "the sample has texts of every key"
    for path in places:
        for text in (secret, f"before {secret} after, ({secret})"):
            text_of = json.dumps(scrub(planted(document, path, text), KNOWN).document).lower()
            for part in (
                "node-07",
                "acme",
                "jdoe",
                "s3cr3t",
                "9f8e7d6c",
                "10.23.4",
                "my data",
                "abcdef",
            ):
                assert part not in text_of, f"{part} of {text!r} is left at {path}"
