"""Seeds and tables of values as one test each: thousands of them make collecting slow."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def few(values: Iterable[T]) -> list[T]:
    """Each fourth value, from the first: what the default tier has of a long table."""
    return [*values][::4]


def rest(values: Iterable[T]) -> list[T]:
    """The values that ``few`` leaves to ``tests/full``."""
    return [each for number, each in enumerate(values) if number % 4]


def looped(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Call a test once for each value, as ``parametrize`` does, but as one test.

    ``names`` has the arguments, with commas between them; a value is a tuple where they are
    several. A failure names the values with which it came, and ends the test. Each call has a
    ``tmp_path`` of its own.
    """
    arguments = [name.strip() for name in names.split(",")]
    rows = [value if len(arguments) > 1 else (value,) for value in values]
    assert rows, f"no value of {names}"

    def of(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def call_with_each(**given: Any) -> None:
            for number, row in enumerate(rows):
                own = dict(zip(arguments, row, strict=True))
                if "tmp_path" in given:
                    own["tmp_path"] = given["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                try:
                    test(**{**given, **own})
                except BaseException as error:
                    reported = ", ".join(f"{name}={own[name]!r}"[:200] for name in arguments)
                    error.add_note(f"with {reported}")
                    raise

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        call_with_each.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return call_with_each

    return of
