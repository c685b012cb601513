"""The published JSON Schema and the package agree on the form of a result document."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import ResultError
from portagpu.runs.results.schema import check_document
from tests.unit.runs.test_result_json_schema import sample
from tests.unit.runs.test_result_json_schema import schema as schema

if TYPE_CHECKING:
    from collections.abc import Iterator

MUTATIONS = 1500


WRONG: tuple[Any, ...] = (None, True, "", "text", -1, 1.5, [], ["a"], {}, {"a": 1})
"""Values of every type; each is wrong for some key."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key and item."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def mutated(document: dict[str, Any], random_: random.Random) -> tuple[str, dict[str, Any]]:
    """(what was done, a copy with one key of another value, missing, or one more)."""
    copied = copy.deepcopy(document)
    path = random_.choice([*places(copied)])
    holder = copied
    for key in path[:-1]:
        holder = holder[key]
    way = random_.choice(("other", "missing", "more"))
    if way == "other":
        holder[path[-1]] = value = random_.choice(WRONG)
        return f"{path} = {value!r}", copied
    if way == "missing" or not isinstance(holder, dict):
        del holder[path[-1]]
        return f"{path} is missing", copied
    holder["one-more"] = 1
    return f"{path[:-1]} has one more", copied


def fits(document: Any) -> bool:
    try:
        check_document(document)
    except ResultError:
        return False
    return True


def test_what_the_schema_refuses_is_refused(schema: Any) -> None:
    random_ = random.Random(16)  # noqa: S311 - a choice, no secret
    refused = 0
    for _ in range(MUTATIONS):
        words, document = mutated(sample(), random_)
        if not schema.is_valid(document):
            refused += 1
            assert not fits(document), words
    assert refused > MUTATIONS / 4


def test_the_schema_refuses_what_has_another_type(schema: Any) -> None:
    """What it cannot say is left: two keys that must be equal, or of one length."""
    random_ = random.Random(17)  # noqa: S311 - a choice, no secret
    left = set()
    for _ in range(MUTATIONS):
        _, document = mutated(sample(), random_)
        try:
            check_document(document)
        except ResultError as error:
            if schema.is_valid(document):
                left.add(str(error).partition(": ")[2])
    ours = ("must have as many values", "must be the unit of the value")
    assert not [each for each in left if not each.startswith(ours)]
