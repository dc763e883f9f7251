"""Values in stored metadata: fill values, and documents of other writers put into the words of the specification.

zarr v3 writes floating-point values that JSON cannot write as `"NaN"`, `"Infinity"`, `"-Infinity"`, or, for a NaN of
other bits, as the bits in hexadecimal.  zarr v2 has numeric strings and base64 instead.

Stored documents are brought into the usual form before they are parsed strictly.  Specs are not, and documents are
always written in the strict form.  The deviations that other readers accept, too:

* NaN and infinities as bare words, which Python's JSON writes, where a fill value has text;
* `"0"` as fill value of integers and 0 as that of booleans (n5-zarr, bioformats2raw, zarrita);
* the level -1 of zlib and gzip, which means 6, and shuffles of blosc by name (n5-zarr, VirtualiZarr);
* chunks of size 0 along a dimension without elements (kerchunk);
* `"dimension_names": null` (zarrita, early zarr-python 3).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fsstore.errors import DataLossError, JsonError
from fsstore.values.json_value import Json, array_of, boolean, check_text, dumps, expected, integer, loads, show, string

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_INTEGER_V2 = re.compile(r"[<>|][iu][1248]")
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, "autoshuffle": -1}
_DEFAULT_LEVEL = 6  # of zlib
_BOOLEANS = {0: False, 1: True}


def load_lenient(data: bytes, usual: Any, *, free: str | None = None) -> Any:
    """Return the JSON of a stored document in its usual form.

    NaN, infinities and halves of characters may stand in the member `free`, and where `usual` finds a word for them.
    """
    try:
        return usual(loads(data))
    except DataLossError as error:
        strict = error
    try:
        value = usual(loads(data, lenient=True, unique=True))
        kept = {name: member for name, member in value.items() if name != free}
        dumps(kept)
        check_text(kept)
    except (DataLossError, ValueError, AttributeError):
        raise strict from None
    return value


def usual_v2(document: Any) -> Any:
    """Return a document `.zarray` with members as the specification has them."""
    if not isinstance(document, Mapping):
        return document
    out = dict(document)
    _give_elements(out, out, "chunks")
    if "fill_value" in out:
        out["fill_value"] = _fill(out["fill_value"], out.get("dtype") in ("|b1", "<b1", ">b1"), _is_integer(out))
    out |= {"compressor": _codec(out["compressor"])} if "compressor" in out else {}
    if isinstance(out.get("filters"), list):
        out["filters"] = [_codec(each) for each in out["filters"]]
    return out


def usual_v3(document: Any) -> Any:
    """Return a document `zarr.json` of an array with members as the specification has them."""
    if not isinstance(document, Mapping):
        return document
    out = dict(document)
    if "dimension_names" in out and out["dimension_names"] is None:
        del out["dimension_names"]
    if "fill_value" in out:
        out["fill_value"] = _fill(out["fill_value"], out.get("data_type") == "bool", False)
    grid = out.get("chunk_grid")
    if isinstance(grid, Mapping) and isinstance(grid.get("configuration"), Mapping):
        configuration = dict(grid["configuration"])
        _give_elements(out, configuration, "chunk_shape")
        out["chunk_grid"] = {**grid, "configuration": configuration}
    return out


def _is_integer(document: Mapping[str, Any]) -> bool:
    kind = document.get("dtype")
    return isinstance(kind, str) and _INTEGER_V2.fullmatch(kind) is not None


def _give_elements(document: Mapping[str, Any], holder: dict[str, Any], name: str) -> None:
    shape, chunks = document.get("shape"), holder.get(name)
    if isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks):
        pairs = zip(shape, chunks, strict=True)
        holder[name] = [1 if _is_zero(size) and _is_zero(step) else step for size, step in pairs]


def _is_zero(value: Any) -> bool:
    return value == 0 and not isinstance(value, bool)


def _fill(value: Any, boolean: bool, integer: bool) -> Any:
    if isinstance(value, list):
        return [_fill(each, boolean, integer) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if boolean and isinstance(value, int) and not isinstance(value, bool):
        return _BOOLEANS.get(value, value)
    if integer and isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return value


def _codec(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = value.get("id")
    if name in ("zlib", "gzip") and value.get("level") == -1:
        return {**value, "level": _DEFAULT_LEVEL}
    shuffle = value.get("shuffle")
    if name == "blosc" and isinstance(shuffle, str) and shuffle in _SHUFFLES:
        return {**value, "shuffle": _SHUFFLES[shuffle]}
    return value


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ML_INTEGERS = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}


def _is_float(native: np.dtype[Any]) -> bool:
    return native.kind == "f" or (native.kind == "V" and native.fields is None and "float" in native.name)


def _integer_range(native: np.dtype[Any]) -> tuple[int, int] | None:
    if native.kind in "iu":
        info = np.iinfo(native)
        return int(info.min), int(info.max)
    return _ML_INTEGERS.get(native.name)


def _scalar(value: Any, native: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(native)[()]


def _hex_bits(text: str, native: np.dtype[Any]) -> Any:
    digits = text[2:]
    if text[:2] != "0x" or not 0 < len(digits) <= 2 * native.itemsize or not _HEX_DIGITS.issuperset(digits):
        raise expected('"Infinity", "-Infinity", "NaN", or hex string', text)
    bits = int(digits, 16).to_bytes(native.itemsize, "little")
    return np.frombuffer(bits, native.newbyteorder("<")).astype(native)[0]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("64-bit floating-point number", value)
    try:
        return float(value)
    except OverflowError:
        raise expected("64-bit floating-point number", value) from None


def _float_v3(value: Any, native: np.dtype[Any]) -> Any:
    if isinstance(value, str):
        return _scalar(_SPECIAL[value], native) if value in _SPECIAL else _hex_bits(value, native)
    return _scalar(_number(value), native)


def _float_v2(value: Any, native: np.dtype[Any]) -> Any:
    if not isinstance(value, str):
        return _scalar(_number(value), native)
    if value in _SPECIAL:
        return _scalar(_SPECIAL[value], native)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise JsonError(f"Invalid floating-point value: {show(value)}")
    return _scalar(number, native)


def _complex(value: Any, native: np.dtype[Any], part: Callable[[Any, np.dtype[Any]], Any]) -> Any:
    half = np.dtype(f"f{native.itemsize // 2}")
    real, imaginary = array_of(lambda item: part(item, half), length=2)(value)
    out = np.empty((), native)
    out.real, out.imag = real, imaginary
    return out[()]


def _time(value: Any, native: np.dtype[Any]) -> Any:
    if value == "NaT":
        return np.array("NaT", native)[()]
    return np.array(integer()(value), "i8").view(native.newbyteorder("="))[()]


def _from_base64(value: Any) -> bytes:
    text = string(value)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise JsonError(f"Invalid base64-encoded value: {show(text)}") from None


def _from_octets(value: Any, length: int | None = None) -> bytes:
    return bytes(array_of(integer(0, 255), length=length)(value))


def _bytes(value: Any, native: np.dtype[Any]) -> Any:
    data = _from_base64(value)
    if native.kind == "S":
        data = data.ljust(native.itemsize, b"\0")
    if len(data) != native.itemsize:
        raise JsonError(f"Expected {native.itemsize} base64-encoded bytes, but received: {len(data)}")
    return np.frombuffer(data, native)[0]


def fill_from_v3(value: Any, native: np.dtype[Any], name: str = "") -> Any:
    """Return the fill value of a zarr v3 array as a scalar of `native`; `name` is the data type's."""
    limits = _integer_range(native)
    if limits is not None:
        return _scalar(integer(*limits)(value), native)
    if native.kind == "b":
        return np.bool_(boolean(value))
    if _is_float(native):
        return _float_v3(value, native)
    if native.kind == "c":
        return _complex(value, native, _float_v3)
    if native.kind in "Mm":
        return _time(value, native)
    if native.kind == "U":
        return np.array(string(value), native)[()]
    if native.kind == "O":
        return _object_v3(value, name)
    return _opaque_v3(value, native)


def _object_v3(value: Any, name: str) -> str | bytes:
    if name == "string":
        return string(value)
    return _from_octets(value) if isinstance(value, list) else _from_base64(value)


def _opaque_v3(value: Any, native: np.dtype[Any]) -> Any:
    if isinstance(value, dict) and native.fields is not None:
        out = np.zeros((), native)
        for name in native.names or ():
            out[name] = fill_from_v3(value.get(name, 0), native.fields[name][0])
        return out[()]
    if isinstance(value, list):
        return np.frombuffer(_from_octets(value, native.itemsize), native)[0]
    if value in (0, "", "0x0"):
        return np.zeros((), native)[()]
    return _bytes(value, native)


def _float_to_v3(value: Any, native: np.dtype[Any]) -> Json:
    data = np.asarray(value, native).tobytes()
    if not math.isnan(float(value)) or data == _scalar(math.nan, native).tobytes():
        return _float_to_v2(value)
    bits = int.from_bytes(data, "little" if native.newbyteorder("=").isnative else "big")
    return f"0x{bits:0{2 * native.itemsize}x}"


def _to_base64(value: Any, native: np.dtype[Any]) -> str:
    data = value if native.kind == "O" else np.asarray(value, native).tobytes()
    return base64.b64encode(data).decode()


def fill_to_v3(value: Any, native: np.dtype[Any], name: str = "") -> Json:
    """Return a fill value as zarr v3 metadata has it; `name` is the data type's."""
    if _integer_range(native) is not None:
        return int(value)
    if native.kind == "b":
        return bool(value)
    if _is_float(native):
        return _float_to_v3(value, native)
    if native.kind == "c":
        half = np.dtype(f"f{native.itemsize // 2}")
        return [_float_to_v3(value.real, half), _float_to_v3(value.imag, half)]
    if native.kind in "Mm":
        return int(np.asarray(value, native.newbyteorder("=")).view("i8"))
    if native.kind == "U" or isinstance(value, str):
        return str(value)
    if native.kind == "S":  # without the zeros at the end, as zarr-python writes it
        return _to_base64(bytes(value), np.dtype(object))
    if native.fields is not None and name != "structured":  # of these zarr-python wants the bytes
        return {name: fill_to_v3(value[name], native.fields[name][0]) for name in native.names or ()}
    return _to_base64(value, native)


def fill_from_v2(value: Any, native: np.dtype[Any], name: str = "") -> Any:
    """Return the fill value of a zarr v2 array as a scalar of `native`, or None for null.

    Objects are of the dtype called `name`; without it they are left as JSON has them.
    """
    if value is None:
        return None
    limits = _integer_range(native)
    if limits is not None:
        parse = integer(-128, 127) if native.name in _ML_INTEGERS else integer(*limits)
        return _scalar(parse(value), native)
    if native.kind == "b":
        return np.bool_(boolean(value))
    if _is_float(native):
        return _float_v2(value, native)
    if native.kind == "c":
        return _bytes(value, native) if isinstance(value, str) else _complex(value, native, _float_v2)
    return _object_v2(value, name) if native.kind == "O" else _other_from_v2(value, native)


def _object_v2(value: Any, name: str) -> Any:
    if name == "ustring":  # zarr-python 2 wrote 0 for text that is empty
        return value if isinstance(value, str) else ""
    if name == "string":
        return _from_base64(value) if isinstance(value, str) else b""
    if not isinstance(value, list):
        return value
    one = np.empty((), object)  # so that a list is one element, and not as many as it has items
    one[()] = value
    return one


def _other_from_v2(value: Any, native: np.dtype[Any]) -> Any:
    if native.kind in "Mm":
        return _time(value, native)
    if native.kind == "U":
        return np.array(str(value) if isinstance(value, int) else string(value), native)[()]
    if value in (0, "0") and not isinstance(value, bool):
        return np.zeros((), native)[()]
    return _bytes(value, native)


def _float_to_v2(value: Any) -> Json:
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def fill_to_v2(value: Any, native: np.dtype[Any]) -> Json:
    """Return a fill value as zarr v2 metadata has it."""
    if value is None:
        return None
    if _integer_range(native) is not None:
        return int(value)
    if native.kind == "b":
        return bool(value)
    if _is_float(native):
        return _float_to_v2(value)
    if native.kind == "c":
        return [_float_to_v2(value.real), _float_to_v2(value.imag)]
    if native.kind in "Mm":
        return int(np.asarray(value, native.newbyteorder("=")).view("i8"))
    if native.kind == "U":
        return str(value)
    if isinstance(value, np.ndarray) and native.kind == "O":
        return value.item()  # type: ignore[no-any-return]  # a list
    if native.kind == "O" and not isinstance(value, bytes):
        return value  # type: ignore[no-any-return]  # JSON, a string or a number
    return _to_base64(value, native)
