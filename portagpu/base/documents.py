"""Checked documents: rules for the keys of a document, and dataclasses as JSON and back.

A rule reads the value of a key, and raises DocumentError with the path of that key. It also says as
JSON Schema (https://json-schema.org/draft/2020-12) what it checks. What JSON Schema cannot say,
such as that two lists have one length, it leaves out: the schema refuses nothing that the rule
accepts.

A dataclass is a rule too. A field's type is a JSON type (text, numbers, true and false, None),
``bytes``, a day, a StrEnum, a Literal, another dataclass, an optional one of these, or a tuple,
frozenset or mapping of them. ``Any`` is left unchanged. ``Annotated[type, rule]`` has a rule of its
own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from portagpu.base.errors import PortagpuError
from portagpu.base.text import did_you_mean, escaped, short_repr

if typing.TYPE_CHECKING:
    from pathlib import Path

_T = TypeVar("_T")
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Read: TypeAlias = Callable[[Any, str], Any]
_MAX_NAMED: Final = 12
_OBJECT: Final = "an object with keys of text"


class DocumentError(PortagpuError, ValueError):
    """A document breaks a rule; the message is one line that begins with the path of the key.

    ``rule`` names it: "type", "required", "unknown-key", "choice", "range", "schema", or another.
    """

    def __init__(self, message: str, rule: str = "type") -> None:
        super().__init__(message)
        self.rule = rule


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """``read(value, path)`` returns the value as Python holds it; ``schema`` is its JSON Schema.

    What Python holds as the document does is the document's own part, which nobody changes. A
    ``nullable`` rule accepts None, which is then not read: most keys of a result have it. Where
    reading changes no other value, ``fits`` says whether one keeps the rule, which costs less.
    """

    read: Read
    schema: dict[str, Json] = dataclasses.field(default_factory=dict)
    nullable: bool = False
    fits: Callable[[Any], object] | None = None


def wrong(path: str, words: str, rule: str = "type") -> DocumentError:
    """The error of the key at ``path``, in one line: names of keys may be anybody's."""
    return DocumentError(escaped(f"{path}: {words}"), rule)


def refuse(path: str, what: str, value: object, rule: str = "type") -> DocumentError:
    """The error of a key whose value is not ``what`` it must be, with the start of its value."""
    return wrong(path, f"must be {what}, not {short_repr(value)}", rule)


def that(what: str, fits: Callable[[Any], object], rule: str = "type", **schema: Json) -> Rule:
    """The rule that a value ``fits``; ``what`` says in messages what it must be."""

    def read(value: Any, path: str) -> Any:
        if not fits(value):
            raise refuse(path, what, value, rule)
        return value

    return Rule(read, schema, fits=fits)


def is_number(value: object) -> bool:
    """True for a finite number that is not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def is_whole(value: object) -> bool:
    """True for an integer that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
# every value has a type
anything: Final = Rule(lambda value, _: value, fits=type)
text: Final = that("text", lambda value: isinstance(value, str), type="string")
filled: Final = that(
    "text that is not empty",
    lambda value: isinstance(value, str) and value != "",
    type="string",
    minLength=1,
)
name: Final = that(
    "text of one line that is not empty",
    lambda value: isinstance(value, str) and value.strip() and value.isprintable(),
    type="string",
    minLength=1,
    # Python's $ also stands before a last line break
    pattern=rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$(?!\n)",
)
flag: Final = that("true or false", lambda value: isinstance(value, bool), type="boolean")


def bounded(
    what: str, low: float | None = None, high: float | None = None, *, integer: bool = False
) -> Rule:
    """A finite number, or an integer, from ``low`` to ``high``."""
    most = math.inf if integer else sys.float_info.max
    lowest, highest = -most if low is None else low, most if high is None else high
    kinds = int if integer else (int, float)

    def fits(value: Any) -> bool:
        right = isinstance(value, kinds) and not isinstance(value, bool)
        return right and lowest <= value <= highest

    bounds: list[tuple[str, Json]] = [("minimum", low), ("maximum", high)]
    kept = {key: bound for key, bound in bounds if bound is not None}
    kind = "integer" if integer else "number"
    return that(what, fits, "range" if kept else "type", type=kind, **kept)


count: Final = bounded("a whole number of at least 0", 0, integer=True)
positive: Final = bounded("a whole number of at least 1", 1, integer=True)
number: Final = bounded("a finite number")
not_negative: Final = bounded("a finite number of at least 0", 0)
whole: Final = bounded("a whole number", integer=True)
_floating: Final = that(
    "a number",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    type="number",
)
"""What JSON of Python's has: messages between processes hold NaN and infinity too."""

_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_INSTANT: Final = _DAY + r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"


def _written(what: str, pattern: str, reader: Callable[[str], object], form: str) -> Rule:
    """Text of that pattern that ``reader`` reads."""

    def fits(value: object) -> object:
        try:
            return isinstance(value, str) and re.fullmatch(pattern, value) and reader(value)
        except ValueError:
            return False

    return that(what, fits, type="string", format=form, pattern=rf"^{pattern}$(?!\n)")


_DAY_WORDS: Final = "a day such as 2027-01-31"
day: Final = _written(_DAY_WORDS, _DAY, date.fromisoformat, "date")
instant: Final = _written(
    "a time as RFC 3339 writes it, with its zone", _INSTANT, datetime.fromisoformat, "date-time"
)


def matching(pattern: str, what: str, rule: str = "type") -> Rule:
    """Text that matches the whole ``pattern``."""
    return that(
        what,
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value),
        rule,
        type="string",
        pattern=rf"^(?:{pattern})$(?!\n)",
    )


def _compiled(value: Any, path: str) -> re.Pattern[str]:
    try:
        return re.compile(text.read(value, path))
    except re.error as error:
        raise wrong(path, f"is not a regular expression: {error}") from error


regular_expression: Final = Rule(_compiled, text.schema)


def one_of(*allowed: str) -> Rule:
    """One of these texts."""
    what = f"one of {', '.join(allowed)}"
    words = frozenset(map(str, allowed))

    def fits(value: Any) -> bool:
        return isinstance(value, str) and value in words

    return that(what, fits, "choice", enum=[*map(str, allowed)])


def version(own: str) -> Rule:
    """The schema ``own``; of a document of a newer version of it, the error says what to do."""
    schema, _, newest = own.rpartition("/")

    def read(value: Any, path: str) -> Any:
        pattern = rf"{re.escape(schema)}/([1-9][0-9]{{0,8}})"
        stated = isinstance(value, str) and re.fullmatch(pattern, value)
        if stated and int(stated[1]) > int(newest):
            raise wrong(path, f"is {value}; this version reads {own}: upgrade portagpu", "schema")
        if value != own:
            raise refuse(path, f"one of {own}", value, "schema")
        return value

    return Rule(read, {"enum": [own]})


def or_null(rule: Rule) -> Rule:
    """The rule, or null."""

    def read(value: Any, path: str) -> Any:
        return None if value is None else rule.read(value, path)

    schema: dict[str, Json] = {"anyOf": [rule.schema, {"type": "null"}]}
    return Rule(read, schema, nullable=True, fits=rule.fits)


def each(rule: Rule) -> Rule:
    """A list whose items keep the rule."""

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise refuse(path, "a list", value)
        if rule.fits and all(map(rule.fits, value)):
            return value
        items = [rule.read(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return value if all(map(operator.is_, items, value)) else items

    one = rule.fits
    fits = one and (lambda value: isinstance(value, list) and all(map(one, value)))
    return Rule(read, {"type": "array", "items": rule.schema}, fits=fits)


def values_of(rule: Rule) -> Rule:
    """An object of any keys whose values keep the rule."""

    def read(value: Any, path: str) -> Any:
        items = mapping(value, path).items()
        if not all(isinstance(key, str) for key, _ in items):
            raise refuse(path, _OBJECT, value)
        return {key: rule.read(item, f"{path}.{key}") for key, item in items}

    return Rule(read, {"type": "object", "additionalProperties": rule.schema})


def object_of(
    rules: Mapping[str, Rule],
    optional: frozenset[str] = frozenset(),
    *,
    further: Callable[[Any, str], None] | None = None,
    together: Sequence[Json] = (),
    others: bool = False,
) -> Rule:
    """An object with these keys and no ``others``; all are there unless ``optional``.

    ``further`` checks what depends on several keys, and ``together`` has the JSON Schemas of it.
    """

    def refuse_others(found: Mapping[Any, Any], prefix: str) -> None:
        for key in [] if others else [str(each) for each in found if each not in rules]:
            raise wrong(prefix + key, f"is not a known key; {hint(key, rules)}", "unknown-key")

    # a large document has thousands of objects
    steps = [(key, rule.read, rule.fits, rule.nullable) for key, rule in rules.items()]

    def read(value: Any, path: str) -> Any:
        document = value if type(value) is dict else mapping(value, path or "document")
        found: Any = document
        prefix, missing = f"{path}." if path else "", 0
        for key, read_value, fits, nullable in steps:
            if key in found:
                given = found[key]
                if given is None and nullable:
                    continue
                if fits is None or not fits(given):
                    new = read_value(given, prefix + key)
                    if new is not given:
                        # a copy, in the order of the document
                        found = dict(document) if found is document else found
                        found[key] = new
            elif key in optional:
                missing += 1
            else:
                # a misspelt one says more than the missing one
                refuse_others(found, prefix)
                raise wrong(prefix + key, "is missing", "required")
        if not others and len(found) + missing > len(rules):
            refuse_others(found, prefix)
        if further is not None:
            further(found, path)
        return found

    schema: dict[str, Json] = {
        "type": "object",
        "properties": {key: rule.schema for key, rule in rules.items()},
        "required": [key for key in rules if key not in optional],
        **({"allOf": list(together)} if together else {}),
    }
    return Rule(read, schema if others else {**schema, "additionalProperties": False})


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """The object itself."""
    if isinstance(value, Mapping):
        return value
    raise refuse(path, _OBJECT, value)


def hint(word: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown word: the closest words, or else the first ones."""
    words = list(known)
    more = ", ..." if len(words) > _MAX_NAMED else ""
    return did_you_mean(word, words, f"there is {', '.join(words[:_MAX_NAMED])}{more}", 3)


def read_toml(path: Path, schema: str, rule: Rule) -> Any:
    """What ``rule`` reads of the document of that schema in a file, without the key schema.

    Raises DocumentError that begins with the path of the file.
    """
    import tomllib  # most documents are JSON

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise wrong(str(path), f"cannot be read as TOML: {why}") from error
    try:
        version(schema).read(document.pop("schema", None), "schema")
        return rule.read(document, "")
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}", error.rule) from error


def encode(value: Any) -> Any:
    """``value`` as JSON; a dataclass is an object with a key for each field."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {name: encode(getattr(value, name)) for name in _field_names(kind)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        items = [encode(item) for item in value]
        return sorted(items) if isinstance(value, frozenset) else items
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else value


def decode(kind: Callable[..., _T], document: object, path: str) -> _T:
    """The dataclass in ``document``, which ``path`` names.

    Raises DocumentError for an unknown or missing key, and for a value that breaks a rule.
    """
    return typing.cast("_T", rule_of(typing.cast("Any", kind)).read(document, path))


def check_types(value: object, kind: type[Any], path: str) -> None:
    """Raise DocumentError unless an object that code made has the types that its class states."""
    rule_of(typing.cast("Any", kind), made=True).read(value, path)


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def optional_fields(kind: Any) -> frozenset[str]:
    """The fields of a dataclass that have a default."""
    missing = dataclasses.MISSING
    return frozenset(
        each.name
        for each in dataclasses.fields(kind)
        if each.default is not missing or each.default_factory is not missing
    )


@functools.cache
def rule_of(kind: Any, *, made: bool = False) -> Rule:
    """The rule of a type: of its values in JSON, or of those that code ``made``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    of = functools.partial(rule_of, made=made)
    if origin is typing.Annotated:
        return next(each for each in arguments[1:] if isinstance(each, Rule))
    if origin in (types.UnionType, typing.Union):
        return or_null(of(next(each for each in arguments if each is not types.NoneType)))
    if origin is typing.Literal:
        return one_of(*arguments)
    if origin in (tuple, frozenset):
        rules = [of(each) for each in arguments if each is not ...]
        ends = origin is tuple and arguments[-1] is not ...
        items = _items_of(rules, (origin,) if made else (list, tuple), ends=ends)
        return Rule(lambda value, path: origin(items.read(value, path)), items.schema)
    if origin is Mapping:
        return values_of(of(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _made(kind) if made else _dataclass(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if made:
        return that(f"a {kind.__name__}", lambda value: isinstance(value, kind))
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if issubclass(kind, StrEnum):
        words = [str(each) for each in kind]
        return _read_by(kind, f"one of {', '.join(words)}", enum=[*words])
    raise TypeError(f"{kind} has no form in JSON")


def _read_by(reader: Callable[[Any], Any], what: str, **schema: Json) -> Rule:
    def read(value: Any, path: str) -> Any:
        try:
            return reader(value)
        except (TypeError, ValueError):
            raise refuse(path, what, value) from None

    return Rule(read, schema)


_PLAIN: Final[Mapping[Any, Rule]] = {
    Any: anything,
    str: text,
    bool: flag,
    int: whole,
    float: _floating,
}
_base64: Final = functools.partial(base64.b64decode, validate=True)
_WRITTEN: Final[Mapping[Any, Rule]] = {
    bytes: _read_by(_base64, "bytes in Base64", type="string"),
    date: _read_by(date.fromisoformat, _DAY_WORDS, type="string"),
}
"""Types that JSON writes as text."""


def _items_of(rules: list[Rule], kinds: tuple[Any, ...], *, ends: bool) -> Rule:
    """Items of these rules; or, unless it ``ends`` with them, of the only one of them."""
    what = "a list" if list in kinds else f"a {kinds[0].__name__}"

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, kinds):
            raise refuse(path, what, value)
        if ends and len(value) != len(rules):
            raise refuse(path, f"{what} of {len(rules)} items", value)
        pairs = zip(rules if ends else rules * len(value), value, strict=True)
        return [rule.read(item, f"{path}[{i}]") for i, (rule, item) in enumerate(pairs)]

    items: list[Json] = [rule.schema for rule in rules]
    form: dict[str, Json] = {"prefixItems": items} if ends else {"items": items[0]}
    return Rule(read, {"type": "array", **form})


def _field_rules(kind: Any, *, made: bool) -> dict[str, Rule]:
    # modules import it for type checkers alone
    hints = typing.get_type_hints(kind, localns={"Mapping": Mapping}, include_extras=True)
    return {each: rule_of(hints[each], made=made) for each in _field_names(kind)}


def _made(kind: Any) -> Rule:
    rules = _field_rules(kind, made=True)

    def read(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise refuse(path, f"a {kind.__name__}", value)
        prefix = f"{path}." if path else ""
        for key, rule in rules.items():
            rule.read(getattr(value, key), prefix + key)
        return value

    return Rule(read)


def _dataclass(kind: Any) -> Rule:
    fields = object_of(_field_rules(kind, made=False), optional_fields(kind))

    def read(value: Any, path: str) -> Any:
        given = fields.read(value, path)
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            raise wrong(path, str(error)) from error

    return Rule(read, fields.schema)
