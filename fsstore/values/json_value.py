"""JSON values: reading with located errors, strict parsing, canonical writing; and the arguments of callers.

A parser is a function from a JSON value to a Python value that raises `JsonError`.  `Fields` reads the members of one
object through parsers, collects every problem with its place, and refuses members that were not asked for.  Messages
follow TensorStore's wording.  Numbers are JSON numbers: `5.0` is an integer, `"5"` and `true` are not.

An argument is returned if it is of one kind, or `TypeError` names it.  Mappings, tuples, NumPy's numbers and objects
that are written as JSON may stand for JSON.  `repr` prints JSON values as Python literals, at most about 80 characters
wide.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from operator import is_
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import DataLossError, JsonError, NotJsonError, StoreError
from fsstore.redaction import plain

Json: TypeAlias = "bool | int | float | str | list[Any] | dict[str, Any] | None"
T = TypeVar("T")
Parser: TypeAlias = Callable[[Any], T]

MISSING: Any = object()
_ESCAPES = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord('"'): '\\"', ord("'"): "\\'", ord("\\"): "\\\\"}


def quote(text: str | bytes) -> str:
    r"""Return `text` in double quotes with C escapes on its UTF-8 bytes: `é` becomes `\xc3\xa9`."""
    try:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character, which JSON may hold
        data = str(text).encode("utf-8", "surrogatepass")
    out, after_hex = [], False
    for byte in data:
        char = chr(byte)
        if byte in _ESCAPES:
            out.append(_ESCAPES[byte])
            after_hex = False
        elif 32 <= byte < 127 and not (after_hex and char in "0123456789abcdefABCDEF"):
            out.append(char)
            after_hex = False
        else:
            out.append(f"\\x{byte:02x}")
            after_hex = True
    return '"' + "".join(out) + '"'


_JSON_TYPES = (Mapping, list, tuple, str, bytes, int, float, type(None))
_UNSHOWN = "<discarded>"
_LONGEST_SHOWN = 4000  # characters of a value in a message


def show(value: Any) -> str:
    """Return `value` as compact JSON for messages, long ones cut; what JSON cannot say prints as `<discarded>`."""
    if value is MISSING:
        return _UNSHOWN
    try:
        text = dumps(value).encode("utf-8", "backslashreplace").decode()
    except (TypeError, ValueError, RecursionError):
        return _UNSHOWN
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def expected(what: str, received: Any) -> JsonError:
    """Return the error `Expected <what>, but received: <value>`."""
    if received is MISSING:
        return JsonError(f"Expected {what}, but member is missing")
    if not isinstance(received, _JSON_TYPES):
        return NotJsonError(f"Expected {what}, but received: {type(received).__name__}")
    shown = show(received)
    kind = NotJsonError if shown == _UNSHOWN and not _is_json(received) else JsonError
    return kind(f"Expected {what}, but received: {shown}")


def _is_json(value: Any) -> bool:
    """Whether all parts of a value are of types of JSON, also where JSON has no word for them, such as NaN."""
    try:
        dumps(value, allow_nan=True)
    except TypeError:
        return False
    except (ValueError, RecursionError):
        pass
    return True


def json_error(error: StoreError) -> JsonError:
    """Return an error that was found in JSON as one of JSON."""
    return error if isinstance(error, JsonError) else JsonError(error.message)


def combined(errors: Iterable[JsonError]) -> JsonError:
    """Return the error of all problems of several: of a wrong Python type if one of the errors is."""
    errors = list(errors)
    kind = NotJsonError if any(isinstance(error, NotJsonError) for error in errors) else JsonError
    return kind([problem for error in errors for problem in error.problems])


def integer(low: int = -(2**63), high: int = 2**63 - 1) -> Parser[int]:
    """Return a parser of integers in `[low, high]`; an integral float counts, a boolean does not."""

    def parse(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise expected(integers_between(low, high), value)
        return value

    return parse


def integers_between(low: int, high: int) -> str:
    """Return how messages call the integers in `[low, high]`."""
    named = {(-(2**63), 2**63 - 1): "64-bit signed integer", (0, 2**64 - 1): "64-bit unsigned integer"}
    return named.get((low, high), f"integer in the range [{low}, {high}]")


def number(value: Any) -> float:
    """Parse a finite JSON number."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # of an integer that no float can hold
        pass
    raise expected("64-bit floating-point number", value)


def boolean(value: Any) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise expected("boolean", value)
    return value


def string(value: Any) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise expected("string", value)
    return value


def any_json(value: Any) -> Any:
    """Parse any value that is JSON."""
    if not _is_json(value):
        raise expected("JSON", value)
    return value


def obj(value: Any) -> dict[str, Any]:
    """Parse an object, left as it is."""
    if not isinstance(value, Mapping):
        raise expected("object", value)
    return dict(value)


def one_of(*choices: str) -> Parser[str]:
    """Return a parser of one of `choices`."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            names = ", ".join(quote(choice) for choice in choices)
            raise expected(names if len(choices) == 1 else f"one of {names}", value)
        return value

    return parse


def optional(parser: Parser[T]) -> Parser[T | None]:
    """Return `parser` that also accepts null."""
    return lambda value: None if value is None else parser(value)


def array_of(parser: Parser[T], *, length: int | None = None) -> Parser[list[T]]:
    """Return a parser of arrays whose elements `parser` reads; all bad positions are reported."""

    def parse(value: Any) -> list[T]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise expected("array", value)
        if length is not None and len(value) != length:
            raise JsonError(f"Array has length {len(value)} but should have length {length}")
        out: list[T] = []
        errors: list[JsonError] = []
        for position, item in enumerate(value):
            try:
                out.append(parser(item))
            except JsonError as error:
                errors.append(error.within(f"Error parsing value at position {position}"))
        if errors:
            raise combined(errors)
        return out

    return parse


class Fields:
    """The members of one JSON object, read one by one.

    `take` reads a member through a parser and remembers its problem instead of raising;
    `finish` raises all of them at once, together with the members that were not taken.
    """

    def __init__(self, value: Any) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise expected("object", value)
        self._left = dict(value)
        self._errors: list[JsonError] = []

    def take(self, name: str, parser: Parser[Any], *, default: Any = None) -> Any:
        """Return the member parsed, or `default` when it is absent or malformed."""
        if name not in self._left:
            return default
        return self._parse(name, self._left.pop(name), parser, default)

    def require(self, name: str, parser: Parser[T]) -> T:
        """Return the member parsed; an absent one is a problem (and None is returned until `finish`)."""
        return self._parse(name, self._left.pop(name, MISSING), parser, None)

    def _parse(self, name: str, value: Any, parser: Parser[T], default: Any) -> T:
        try:
            return parser(value)
        except JsonError as error:
            self._errors.append(error.within(f"Error parsing object member {quote(name)}"))
            return default  # type: ignore[no-any-return]  # never seen: finish raises

    def __contains__(self, name: str) -> bool:
        """Return whether the member is present and not taken yet."""
        return name in self._left

    def problem(self, text: str) -> None:
        """Remember a problem of the object as a whole."""
        self._errors.append(JsonError(text))

    def rest(self) -> dict[str, Any]:
        """Take and return all members not taken yet."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Raise `JsonError` with every problem found, unknown members included."""
        if self._left:
            names = ", ".join(quote(name) for name in sorted(self._left))
            kind = JsonError if _is_json(self._left) else NotJsonError
            self._errors.append(kind(f"Object includes extra members: {names}"))
        if self._errors:
            raise combined(self._errors)


def _pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"the member {quote(name)} appears twice")
        out[name] = value
    return out


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value


def check_text(value: Any) -> None:
    """Raise `UnicodeEncodeError`, a `ValueError`, for an escaped half of a character: no text can hold it."""
    json.dumps(value, ensure_ascii=False).encode()


_DEEPEST = 128  # levels of a document
DEEPEST_SPEC = 68
"""Levels of a spec: each may be one of a store over another, which takes some calls to open."""


def check_depth(value: Any, deepest: int = _DEEPEST) -> None:
    """Raise `JsonError` for JSON nested more deeply than what reads, compares and prints it can follow."""
    level = [value]
    for _ in range(deepest):
        inner = [part for each in level for part in _children(each) if isinstance(part, dict | list | tuple)]
        if not inner:
            return
        level = list({id(part): part for part in inner}.values())  # a list may hold itself, twice
    raise JsonError(f"JSON is nested too deeply: more than {deepest} levels")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; attributes may hold NaN, which is the same as NaN here."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def loads(data: bytes | bytearray | memoryview | str, *, lenient: bool = False, unique: bool = False) -> Any:
    """Return the value of a stored JSON document.

    Duplicate members, NaN and infinities, also as numbers too large for a float, and escaped halves of characters are
    refused, because readers disagree on them; `lenient` accepts these, for documents that other writers produce, and
    with `unique` all of them but duplicate members.
    A byte order mark is skipped.
    Raises `DataLossError` that says why and where.
    """
    try:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig")
        if lenient:
            value = json.loads(text, object_pairs_hook=_pairs if unique else None)
        else:
            value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse_constant, parse_float=_finite)
            if "\\ud" in text or "\\uD" in text:
                check_text(value)
        if text.count("[") + text.count("{") > _DEEPEST:
            check_depth(value)
    except (RecursionError, JsonError):
        raise DataLossError("Invalid JSON: nested too deeply") from None
    except ValueError as error:
        raise DataLossError(f"Invalid JSON: {error}") from None
    return value


def dumps(value: Any, *, allow_nan: bool = False) -> str:
    """Return `value` as compact JSON with sorted members, as stored documents are written."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=allow_nan)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a character, which only an escape can say
            return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=allow_nan)
    return text


def sorted_members(value: Any) -> Any:
    """Return JSON with the members of all objects sorted by name."""
    if isinstance(value, Mapping):
        return {name: sorted_members(value[name]) for name in sorted(value)}
    return [sorted_members(item) for item in value] if isinstance(value, list) else value


def as_flag(name: str, value: Any) -> bool:
    """Return a keyword argument as a boolean; None is not given.  Text, containers and our own values are no flags."""
    is_other = isinstance(value, str | bytes) or type(value).__module__ == "fsstore"
    if value is not None and (is_other or not hasattr(type(value), "__bool__")):
        raise TypeError(f"{name} must be a boolean, not {type(value).__name__}")
    try:
        return bool(value)
    except ValueError:  # an array of several elements is neither true nor false
        raise TypeError(f"{name} must be a boolean, not {type(value).__name__}") from None


def as_text(name: str, value: Any) -> str:
    """Return an argument that is text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def as_seconds(name: str, value: Any) -> float | None:
    """Return an argument that is a number of seconds, or None."""
    if value is not None and not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return value  # type: ignore[return-value]  # a number, as it was given


def as_callable(name: str, value: Any) -> Any:
    """Return an argument that can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def require_kind(name: str, value: Any, kind: type) -> None:
    """Raise unless an argument is None or of a class."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__qualname__}, not {type(value).__name__}")


# Words that people mean: what an error says of a name that is none, such as an attribute or a keyword.


def meant(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a word that is close to a known one, else nothing.

    >>> meant("chunk", ["chunks", "codec"])
    "; did you mean 'chunks'?"
    """
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def close_names(word: str, *known: Iterable[str]) -> list[str]:
    """Return the name that is closest to a word, if any is close; of short names, one letter may differ.

    >>> close_names("s4", ["s3", "gcs"]), close_names("frob", ["file"])
    (['s3'], [])
    """
    names = sorted({name for each in known for name in each})
    return get_close_matches(word, names, n=1, cutoff=0.6 if len(word) > 2 else 0.5)


# Values that may stand for JSON.


class WrittenAsJson:
    """A value that means its JSON form where it stands inside other JSON."""

    __slots__ = ()

    def to_json(self) -> Any:
        """Return the JSON form."""
        raise NotImplementedError  # each class that is written as JSON has one


def json_like(value: Any) -> Any:
    """Return `value` with the parts that stand for JSON written as JSON."""
    try:
        return _written(value)
    except RecursionError:
        raise JsonError("JSON is nested too deeply") from None


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _written(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, WrittenAsJson):
        return value.to_json()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    if type(value) is dict or (isinstance(value, Mapping) and "driver" in value):
        parts = {name if isinstance(name, str) else str(name): _written(part) for name, part in value.items()}
        is_same = parts.keys() == value.keys() and all(map(is_, parts.values(), value.values()))
        return value if is_same and type(value) is dict else parts  # it may be a store, which others change
    return [_written(part) for part in value] if isinstance(value, list | tuple) else value


# The layout of `repr`.

_WIDTH = 80
_DEEPEST_SHOWN = 100  # levels that are printed; what lies deeper is shown as three dots


def one_line(text: object) -> str:
    """Return text as `plain` does, line ends escaped too: a name that contains one must not look like two."""
    return plain(text).replace("\n", "\\n")


def _quoted(text: str) -> str:
    return "'" + quote(text)[1:-1] + "'"


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124  # NaN is the only value that differs from itself
        return "nan"
    text = repr(value)
    if not 1e15 <= abs(value) < 1e16:
        return text
    # TensorStore goes over to exponents one digit earlier than Python.
    sign, digits = text[: text[0] == "-"], text.lstrip("-").replace(".", "").rstrip("0")
    return f"{sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e+15"


def literal(value: Any) -> str:
    """Return the JSON value as a Python literal on one line, members sorted by the bytes of their names."""
    return _literal(value, sys.maxsize, 0) or ""


def _literal(value: Any, room: int, depth: int) -> str | None:
    """Return the literal, or None as soon as it is known to be longer than `room`."""
    if isinstance(value, dict | list | tuple):
        return _bracketed(value, room, depth)
    text = _quoted(value) if isinstance(value, str) else _number(value) if isinstance(value, float) else repr(value)
    return text if len(text) <= room else None


def _bracketed(value: Any, room: int, depth: int) -> str | None:
    left, right = "{}" if isinstance(value, dict) else "[]"
    if depth >= _DEEPEST_SHOWN:
        return f"{left}...{right}"
    if 3 * len(value) > room:  # no entry takes less, the last of them two
        return None
    parts: list[str] = []
    left_over = room - 2
    for name in _names(value) if isinstance(value, dict) else range(len(value)):
        head = f"{_quoted(str(name))}: " if isinstance(value, dict) else ""
        inner = _literal(value[name], left_over - len(head), depth + 1)
        if inner is None:
            return None
        parts.append(head + inner)
        left_over -= len(parts[-1]) + 2
    text = left + ", ".join(parts) + right
    return text if len(text) <= room else None


def _names(value: dict[str, Any]) -> list[str]:
    return sorted(value, key=lambda name: name.encode("utf-8", "surrogateescape"))


def _laid_out(value: Any, indent: int, column: int, depth: int) -> str:
    is_open = isinstance(value, dict | list | tuple) and value and depth < _DEEPEST_SHOWN
    line = _literal(value, _WIDTH - depth - column if is_open else sys.maxsize, depth)
    if line is not None:
        return line
    inner, pad = indent + 2, " " * (indent + 2)
    if isinstance(value, dict):
        entries = [(f"{_quoted(name)}: ", value[name]) for name in _names(value)]
        brackets = "{}"
    else:
        entries = [("", item) for item in value]
        brackets = "[]"
    lines = [f"{pad}{key}{_laid_out(item, inner, inner + len(key), depth + 1)},\n" for key, item in entries]
    return f"{brackets[0]}\n{''.join(lines)}{' ' * indent}{brackets[1]}"


def pretty(prefix: str, value: Any) -> str:
    """Return `prefix(value)` as specs and stores are shown: `pretty("Schema", {})` is `Schema({})`."""
    return f"{prefix}({_laid_out(value, 0, 0, 0)})"
