"""The small parts of stored structures of an OCDBT database: integers, places in data files, frames, keys, generations.

Every list of records in OCDBT is stored by column, so a node of 100,000 entries is a dozen long runs of varints.  Long
runs are decoded and encoded by numpy in a few passes; short ones, as in manifests, by a loop. Malformed input raises
`DataLossError`; this module does not know the meaning of the numbers.

The name of a data file is a pair (base path, relative path).  A structure is read in the context of a transitive path,
which is put before the base path when the table is decoded, so that the pairs of this package are always relative to
the database directory.  Files that are referred to from a file have that file's base path as their context: this is how
one database is grafted into another.

`seal` and `unseal` are inverses.  The compression found in the frame decides how it is read; what the database is
configured to use decides only how it is written.  A body may unfold to at most `BODY_LIMIT` bytes, so that a few
damaged or hostile bytes cannot fill the memory.

Keys of a node are stored without the prefix that they share with the one before.  Lengths, prefixes and order are array
operations, and so is rebuilding thousands of short keys, letter by letter; few or long keys are rebuilt by a loop over
slices.  The total length of the keys is checked before they are built, because a few bytes of prefix lengths can stand
for gigabytes of keys.

The generation of an inline value is derived from the value, that of an indirect one from its place; so a conditional
write needs no more than the leaf.  Short values stand for themselves, being shorter than any hash, which halves the
time of looking thousands of them up.  TensorStore derives its own by another hash; neither is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice, pairwise
from operator import lt
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from fsstore.errors import DataLossError, ResourceExhaustedError
from fsstore.kvstore.contract.driver import NO_VALUE
from fsstore.runtime.fork import OfThread
from fsstore.runtime.tuning import COLUMNS_FROM, REQUEST_BYTES

MANIFESTS_KEPT = 128  # of a numbered database; older ones are deleted, and a slow reader may miss them
COLUMN_LETTERS = 64  # letters of a key: shorter keys are compared by column, letter by letter, longer ones one by one


# Variable-length integers (unsigned LEB128), one by one and by column, and a cursor that reads them.

UInts: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1
"""The greatest values of varints of the three widths."""


def encode(number: int) -> bytes:
    """Return one number as a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_column(numbers: Sequence[int] | Ints | UInts) -> bytes:
    """Return the concatenated varints of `numbers`."""
    if len(numbers) < COLUMNS_FROM:
        return b"".join([encode(int(number)) for number in numbers])
    values = np.asarray(numbers).astype(np.uint64)
    top = int(values.max())
    if top < 128:
        return values.astype(np.uint8).tobytes()
    sizes = np.ones(len(values), np.int64)
    for step in range(7, top.bit_length(), 7):
        sizes += values >= np.uint64(1 << step)
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    for place in range(int(sizes.max())):
        chosen = np.flatnonzero(sizes > place)
        group = (values[chosen] >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(127)
        out[starts[chosen] + place] = group | (sizes[chosen] > place + 1).astype(np.uint8) << np.uint8(7)
    return out.tobytes()


class Cursor:
    """A position in a buffer; every `take_*` moves it on.  `what` names the structure in messages."""

    __slots__ = ("_array", "data", "position", "what")

    def __init__(self, data: bytes, what: str, position: int = 0) -> None:
        self.data, self.what, self.position = data, what, position
        self._array = np.frombuffer(data, np.uint8)

    def corrupt(self, why: str) -> DataLossError:
        """Return the error for damage at the current position."""
        return DataLossError(f"Error decoding {self.what}: {why}; at byte {self.position}")

    def take_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        stop = self.position + count
        if stop > len(self.data):
            raise self.corrupt(f"expected {count} more bytes but only {len(self.data) - self.position} are left")
        out = self.data[self.position : stop]
        self.position = stop
        return out

    def take_u8(self) -> int:
        """Return the next byte."""
        return self.take_bytes(1)[0]

    def take_fixed(self, count: int, size: int, *, signed: bool = False) -> list[int]:
        """Return `count` little-endian numbers of `size` bytes."""
        dtype = np.dtype(f"<{'i' if signed else 'u'}{size}")
        found: list[int] = np.frombuffer(self.take_bytes(count * size), dtype).tolist()
        return found

    def take(self, limit: int = U64) -> int:
        """Return the next varint, at most `limit`."""
        data, at, shift, out = self.data, self.position, 0, 0
        while True:
            if at >= len(data):
                raise self.corrupt("unexpected end of a varint")
            byte = data[at]
            at += 1
            out |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise self.corrupt("varint of more than 10 bytes")
        if out > limit:
            raise self.corrupt(f"number {out} exceeds {limit}")
        self.position = at
        return out

    def take_list(self, count: int, limit: int = U64) -> list[int]:
        """Return `count` varints as a list."""
        if count < COLUMNS_FROM:
            return [self.take(limit) for _ in range(count)]
        found: list[int] = self.take_column(count, limit).tolist()
        return found

    def take_column(self, count: int, limit: int = U64) -> UInts:
        """Return `count` varints as an array."""
        if count < COLUMNS_FROM:
            return np.array([self.take(limit) for _ in range(count)], np.uint64)
        window = self._array[self.position : self.position + count]
        if len(window) < count:
            raise self.corrupt(f"expected {count} varints but only {len(window)} bytes are left")
        if int(window.max()) < 128:
            values = window.astype(np.uint64)
            used = count
        else:
            values, used = self._decode(self._array[self.position : self.position + 10 * count], count)
        top = int(values.max())
        if top > limit:
            raise self.corrupt(f"number {top} exceeds {limit}")
        self.position += used
        return values

    def _decode(self, window: npt.NDArray[np.uint8], count: int) -> tuple[UInts, int]:
        ends = np.flatnonzero(window < 128)[:count]
        if len(ends) < count:
            raise self.corrupt("unexpected end of a varint")
        starts = np.concatenate(([0], ends[:-1] + 1))
        sizes = ends - starts + 1
        longest = int(sizes.max())
        if longest > 10 or (longest == 10 and (window[ends[sizes == 10]] > 1).any()):
            raise self.corrupt("varint of more than 64 bits")
        values = (window[starts] & np.uint8(127)).astype(np.uint64)
        for place in range(1, longest):
            chosen = np.flatnonzero(sizes > place)
            group = (window[starts[chosen] + place] & np.uint8(127)).astype(np.uint64)
            values[chosen] |= group << np.uint64(7 * place)
        return values, int(ends[-1]) + 1

    def finish(self) -> None:
        """Raise unless everything was consumed."""
        if self.position != len(self.data):
            raise self.corrupt(f"{len(self.data) - self.position} bytes too many")


# Names of data files, the table of them in every structure, and locations in them.

MISSING = U64
"""Offset and length of the root of an empty version."""


class DataFile(NamedTuple):
    """A data file, relative to the database directory: its name is `base_path + relative_path`."""

    base_path: bytes
    relative_path: bytes

    @property
    def name(self) -> bytes:
        """The whole path."""
        return self.base_path + self.relative_path


NO_FILE = DataFile(b"", b"")
"""The file that the location of a missing root refers to."""


class Location(NamedTuple):
    """The byte range `[offset, offset + length)` of a data file."""

    file: DataFile
    offset: int
    length: int


def sorted_files(files: Iterable[DataFile]) -> tuple[list[DataFile], dict[DataFile, int]]:
    """Return the distinct files in the order of a table, and the index of each."""
    table = sorted(set(files))
    return table, {file: index for index, file in enumerate(table)}


def encode_files(table: Sequence[DataFile]) -> bytes:
    """Return the encoded table."""
    prefixes = [_shared(a, b) for a, b in pairwise(table)]
    suffixes = [file.name[cut:] for file, cut in zip(table, [0, *prefixes], strict=True)] if table else []
    columns = [
        encode(len(table)),
        encode_column(prefixes),
        encode_column([len(suffix) for suffix in suffixes]),
        encode_column([len(file.base_path) for file in table]),
    ]
    return b"".join(columns + suffixes)


def _shared(a: DataFile, b: DataFile) -> int:
    """Return how many bytes of `a`'s path `b` reuses; beyond the base paths only if these are equal."""
    if a.base_path == b.base_path:
        return len(a.base_path) + _common(a.relative_path, b.relative_path)
    return _common(a.base_path, b.base_path)


def _common(a: bytes, b: bytes) -> int:
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(place for place in range(length) if a[place] != b[place])


def decode_files(cursor: Cursor, context: bytes) -> list[DataFile]:
    """Return the table at the cursor, `context` put before the base paths."""
    count = cursor.take()
    if count == 0:
        return []
    if count > len(cursor.data):
        raise cursor.corrupt(f"a table of {count} data files does not fit")
    prefixes = [0, *cursor.take_list(count - 1, U16)]
    sizes = cursor.take_list(count, U16)
    bases = cursor.take_list(count, U16)
    files: list[DataFile] = []
    path, previous_base = b"", 0
    room = 64 * len(cursor.data) + 2**26
    for prefix, size, base in zip(prefixes, sizes, bases, strict=True):
        if prefix > len(path) or (files and prefix > min(previous_base, base) and previous_base != base):
            raise cursor.corrupt(f"path prefix of {prefix} bytes exceeds what precedes it")
        path = path[:prefix] + cursor.take_bytes(size)
        room -= len(path)
        if base > len(path) or len(context) + len(path) > U16 or room < 0:
            raise cursor.corrupt(f"data file path of {len(path)} bytes with a base path of {base} bytes is invalid")
        if b".." in path and b".." in (context + path).split(b"/"):
            raise cursor.corrupt("a data file path leads out of the database directory")
        files.append(DataFile(context + path[:base], path[base:]))
        previous_base = base
    return files


def take_locations(cursor: Cursor, files: Sequence[DataFile], count: int) -> list[Location | None]:
    """Return `count` locations; a missing one is None."""
    indexes, offsets, lengths = (cursor.take_list(count) for _ in range(3))
    if count and max(indexes) >= len(files):
        raise cursor.corrupt(f"data file {max(indexes)} of {len(files)} does not exist")
    out: list[Location | None] = []
    for index, offset, length in zip(indexes, offsets, lengths, strict=True):
        if offset == length == MISSING:
            out.append(None)
        elif offset + length >= 2**63:
            raise cursor.corrupt(f"byte range [{offset}, {offset + length}) is out of range")
        else:
            out.append(Location(files[index], offset, length))
    return out


# The frame of manifests and nodes: magic, length, version, compression, body, CRC-32C.

MANIFEST = bytes.fromhex("0cdb3a2a")
VERSION_NODE = bytes.fromhex("0cdb1234")
BTREE_NODE = bytes.fromhex("0cdb20de")

BODY_LIMIT = 512 * 1024 * 1024
"""The greatest decoded size of one structure."""

_STEP = 1024
"""Bytes of input decompressed at a time: zstd makes at most 128 KiB of 4 bytes, so one step adds at most 32 MiB."""

_decompressor = OfThread(zstandard.ZstdDecompressor)


def seal(magic: bytes, body: bytes, level: int | None) -> bytes:
    """Return the structure around `body`, compressed by zstd at `level` unless that is None."""
    if level is not None:
        body = zstandard.ZstdCompressor(level=level).compress(body)
    head = magic + struct.pack("<Q", len(body) + 18) + bytes((0, level is not None))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return b"".join((head, body, struct.pack("<I", crc)))


def unseal(magic: bytes, data: bytes, what: str) -> bytes:
    """Return the body of a structure that must begin with `magic`; `what` names it in messages."""
    cursor = Cursor(data, what)
    found = cursor.take_bytes(4) if len(data) >= 4 else data
    if found != magic:
        raise cursor.corrupt(f"Expected to start with hex bytes {magic.hex()} but received: 0x{found.hex()}")
    length = cursor.take_fixed(1, 8)[0]
    if length != len(data):
        raise cursor.corrupt(f"Length in header ({length}) does not match actual length ({len(data)})")
    if len(data) < 18:
        raise cursor.corrupt("too short for a header and a checksum")
    stored, actual = struct.unpack("<I", data[-4:])[0], google_crc32c.value(data[:-4])
    if stored != actual:
        raise cursor.corrupt(f"CRC-32C checksum verification failed: stored {stored:08x}, computed {actual:08x}")
    version = cursor.take(U32)
    if version != 0:
        raise cursor.corrupt(f"Maximum supported version is 0 but received: {version}")
    method = cursor.take(U32)
    body = data[cursor.position : -4]
    if method == 0:
        return body
    if method != 1:
        raise cursor.corrupt(f"Unknown compression method {method}")
    return _unfold(body, what)


def _unfold(body: bytes, what: str) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size > BODY_LIMIT:
            raise ResourceExhaustedError(f"Error decoding {what}: {size} bytes exceed the limit of {BODY_LIMIT}")
        if size >= 0:
            return _decompressor.now.decompress(body, allow_extra_data=False)
        return _unfold_stream(body, what)
    except zstandard.ZstdError as error:
        raise DataLossError(f"Error decoding {what}: {error}") from None


def _unfold_stream(body: bytes, what: str) -> bytes:
    """Decompress a frame that does not state its size."""
    stream = _decompressor.now.decompressobj()
    parts: list[bytes] = []
    total = 0
    for start in range(0, len(body), _STEP):
        if stream.eof:
            raise DataLossError(f"Error decoding {what}: data follow the compressed frame")
        part = stream.decompress(body[start : start + _STEP])
        total += len(part)
        if total > BODY_LIMIT:
            raise ResourceExhaustedError(f"Error decoding {what}: it unfolds to more than {BODY_LIMIT} bytes")
        parts.append(part)
    if not stream.eof or stream.unused_data:
        raise DataLossError(f"Error decoding {what}: the compressed frame is cut off or followed by data")
    return b"".join(parts)


# The keys of a node: each is stored without the prefix that it shares with the key before.

KEY_LIMIT = U16
"""The greatest length of a key."""


def key_lengths(keys: Sequence[bytes]) -> Ints:
    """Return the length of each key."""
    return np.fromiter(map(len, keys), np.int64, len(keys))


def shared_prefixes(keys: Sequence[bytes], lengths: Ints) -> Ints:
    """Return how many bytes each key shares with the key before; the first key has no entry."""
    count = len(keys)
    if count < 2:
        return np.zeros(0, np.int64)
    width = max(1, int(lengths.max()))
    rows = max(2, REQUEST_BYTES // width)
    out = np.minimum(lengths[1:], lengths[:-1])
    for start in range(0, count - 1, rows - 1):
        block = keys[start : start + rows]
        table = np.array(block, f"S{width}").view(np.uint8).reshape(len(block), width)
        differs = table[1:] != table[:-1]
        first = differs.argmax(axis=1)
        # rows that differ nowhere are padded copies of each other: the shorter key is a prefix
        first[(first == 0) & ~differs[:, 0]] = width
        part = out[start : start + len(block) - 1]
        np.minimum(part, first, out=part)
    return out


def encode_keys(keys: Sequence[bytes], shared: Ints, lengths: Ints) -> tuple[bytes, bytes]:
    """Return the encoded columns of lengths, and the suffixes."""
    cuts = np.concatenate((np.zeros(1, np.int64), shared))
    sizes = encode_column(shared) + encode_column(lengths - cuts)
    return sizes, b"".join([key[cut:] for key, cut in zip(keys, cuts.tolist(), strict=True)])


def take_keys(cursor: Cursor, count: int, *, subtrees: bool) -> tuple[list[bytes], Ints]:
    """Return the relative keys at the cursor, and the lengths that subtrees leave out (if they are stored)."""
    shared = cursor.take_column(count - 1, U16).astype(np.int64)
    sizes = cursor.take_column(count, U16).astype(np.int64)
    omitted = cursor.take_column(count if subtrees else 0, U16).astype(np.int64)
    lengths = sizes.copy()
    lengths[1:] += shared
    if (shared > lengths[:-1]).any():
        raise cursor.corrupt("a key prefix is longer than the previous key")
    if int(lengths.max()) > KEY_LIMIT:
        raise cursor.corrupt(f"a key is longer than {KEY_LIMIT} bytes")
    if subtrees and (omitted > lengths).any():
        raise cursor.corrupt("a subtree common prefix is longer than its key")
    if int(lengths.sum()) > BODY_LIMIT:
        raise ResourceExhaustedError(f"Error decoding {cursor.what}: its keys take more than {BODY_LIMIT} bytes")
    data = cursor.take_bytes(int(sizes.sum()))
    keys, rising = _expand(data, sizes, lengths)
    if not rising:
        raise cursor.corrupt("keys are not strictly increasing")
    return keys, omitted


def _expand(data: bytes, sizes: Ints, lengths: Ints) -> tuple[list[bytes], bool]:
    """Return the keys of these lengths whose last `sizes` bytes are `data`, and whether they are increasing."""
    starts, shared = np.cumsum(sizes) - sizes, lengths - sizes
    width = int(lengths.max())
    # numpy strips zeros at the end of a text
    if 0 < width <= min(COLUMN_LETTERS, len(sizes) // COLUMN_LETTERS) and b"\0" not in data:
        table = _table(np.frombuffer(data, np.uint8), starts - shared, shared, lengths)
        return table.tolist(), bool((table[1:] > table[:-1]).all())
    key = b""
    rows = zip(starts.tolist(), (starts + sizes).tolist(), shared.tolist(), strict=True)
    keys = [key := key[:cut] + data[start:end] for start, end, cut in rows]
    return keys, all(map(lt, keys, islice(keys, 1, None)))


def _table(letters: npt.NDArray[np.uint8], origins: Ints, shared: Ints, lengths: Ints) -> npt.NDArray[np.bytes_]:
    """Return the keys whose letter n is `letters[origin + n]`, or the previous key's letter if it is shared.

    At one letter position, the keys fall into runs, each of which begins with a key that does not share the letter.  So
    100,000 keys of 8 letters take 7 ms, against 20 ms for the loop.
    """
    count, width = len(lengths), int(lengths.max())
    columns = np.empty((width, count), np.uint8)
    for place, column in enumerate(columns):
        heads = np.flatnonzero(shared <= place)
        found = letters[np.minimum(origins[heads] + place, len(letters) - 1)]
        column[:] = np.repeat(found, np.diff(heads, append=count))
        column[lengths <= place] = 0
    return np.ascontiguousarray(columns.T).view(f"S{width}").ravel()


_DIGEST = 20  # bytes


def value_generation(value: bytes | Location | None) -> bytes:
    """Return the generation of an entry with this value or location; None is a missing entry."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bytes):
        short = len(value) < _DIGEST
        return b"\0" + (value if short else blake2b(b"\1" + value, digest_size=_DIGEST).digest())
    (base, relative), offset, length = value
    sizes = b"\0%d:%d:%d:" % (offset, length, len(base))
    return b"\0" + blake2b(sizes + base + relative, digest_size=_DIGEST).digest()
