"""Writes `docs/troubleshooting.md`: the messages of `reference/mistakes.md` by kind, each kind with its cause and cure.

    python docs/troubleshooting.py

A test compares the page with what this program writes, and sees to it that every message has a kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CURES", "PAGE", "Cure", "kind_of", "messages", "page"]

HERE = Path(__file__).parent
MISTAKES = HERE / "reference" / "mistakes.md"
PAGE = HERE / "troubleshooting.md"
ROW = re.compile(r"^\| `(?P<code>.+?)` \| `` (?P<said>.+) `` \|$", re.MULTILINE)


@dataclass(frozen=True)
class Cure:
    """A kind of message: what it looks like, why it comes, and what to do."""

    title: str
    pattern: str
    cause: str
    cure: str


# The first pattern that is found in a message decides.
CURES = (
    Cure(
        "'Future' has no attribute: a forgotten result()",
        r"'Future' ",
        "A call returned a future, and you used it as the result.",
        "Call `.result()`, or `await` it: `ts.open(url).result().shape`.",
    ),
    Cure(
        "Unsupported URL scheme",
        r"unsupported URL scheme|not valid as the first URL|URL must be non-empty",
        "A part of the URL has a name that no store or format has, or the parts are in the wrong order.",
        "Write the store first, then adapters and the format behind bars: `s3://bucket/a.zarr|zarr3:`. "
        "[URL schemes](reference/schemes.md) lists all names.",
    ),
    Cure(
        "Failed to detect format",
        r"Failed to detect format",
        "No format was recognised at the place: it is empty, or holds something else.",
        "Look with `fsstore ls` or `ts.tree(place)`. Open a group with `ts.open_group`, or name "
        "the format: `…|zarr3:`.",
    ),
    Cure(
        "It is a group, not an array",
        r"is a group and no array|it is a group|is an array and no group",
        "The place holds a group where an array was asked for, or the other way round.",
        "Open groups with `ts.open_group`, and arrays with `ts.open`; the message names the arrays below.",
    ),
    Cure(
        "NOT_FOUND: there is nothing, metadata does not exist, there is no array or group",
        r"does not exist|There is no array or group|There is nothing at|NOT_FOUND",
        "Nothing is stored under that name, or it is stored in another format than the URL says.",
        "Check the spelling; the message proposes a close name. Leave the format out to have it detected.",
    ),
    Cure(
        "ALREADY_EXISTS",
        r"ALREADY_EXISTS|already; |There is something at",
        "You create what is there already.",
        'Open it with `mode="a"`, or replace it with `mode="w"` or `overwrite=True`, which delete it first.',
    ),
    Cure(
        "DATA_LOSS: damaged, cut off or not this format",
        r"DATA_LOSS|Expected integer in the range \[3, 3\]",
        "The stored bytes are damaged, cut off, or of another format.",
        "Fetch the file again, or repair a copy with `fsstore verify --repair`. [Check a "
        "copy](how-to/check-copy.md) says how.",
    ),
    Cure(
        "UNAVAILABLE: the server does not answer",
        r"UNAVAILABLE|after \d+ tries",
        "The server is down, or its name or port is wrong.",
        "Check the URL and the network. Where servers are busy for long, [raise the "
        "deadline](stores/context.md#waiting-and-retries).",
    ),
    Cure(
        "Credentials and storage options are refused",
        r"storage option|storage_options|credential",
        "An option is misspelt, or this store does not have it.",
        "Use the names of the fsspec filesystem; [Credentials and options](how-to/options.md) has examples.",
    ),
    Cure(
        "OUT_OF_RANGE: negative or too large index",
        r"OUT_OF_RANGE|Indexing expression requires|valid indices|named by text",
        "An index lies outside the domain. Negative numbers are coordinates here; they do not count from the end.",
        "Use `array[array.shape[0] - 1]` for the last element. [Indexing](explain/indexing.md) explains why.",
    ),
    Cure(
        "Cannot cast array data",
        r"Cannot cast|could not convert|a value is str, bytes",
        "The values do not fit the stored type without loss.",
        'Convert them yourself: `array.write(values.astype("f4"))`, or write through `ts.cast(array, "float64")`.',
    ),
    Cure(
        "Read only: cannot write or change",
        r"opened for reading|does not support writing",
        "The array or group was opened for reading, or its store cannot be written.",
        'Open it with `mode="r+"`. [Limits and promises](promises.md) says which stores can be written.',
    ),
    Cure(
        "Unknown mode or format version",
        r"mode is one of|open mode|create mode|zarr_format is|Invalid `order`",
        "A word is none that is known, or two words contradict each other.",
        "Use `r`, `r+`, `a`, `w` or `w-`; name a format when you create an array.",
    ),
    Cure(
        "Unknown argument, member or resource",
        r"unexpected keyword|extra members|not a registered|Invalid context resource|"
        r"There is no option|Error parsing object member|"
        r'"kvstore" must be specified',
        "A name in the call, in a JSON spec or in a context is misspelt, missing, or stands in the wrong place.",
        "The message names it, and proposes a close one where there is one. Formats take their own "
        "members in `metadata`.",
    ),
    Cure(
        "A stored array is not a NumPy array",
        r"not compared with values|is not iterated|has no attribute|has no constructor",
        "An open array reads nothing by itself, so it has no `mean`, no `==` and no loop.",
        "Read first: `array[:100].read().result().mean()`.",
    ),
    Cure(
        "A place or a path is expected",
        r"a place is|is no path of a member",
        "An argument is of a kind that cannot say where data are.",
        "Give a URL, a path, a JSON spec, or an open store.",
    ),
    Cure(
        "Data type, shape, chunks or codec do not fit",
        r"does not match|Mismatch|must be specified|data type with name|Invalid shape|chunk|codec|"
        r"out has the shape|"
        r"must have rank|resize request",
        "What you ask for contradicts the stored array, or itself, or leaves out what a new array needs.",
        "Print `array.info` and compare. A new array needs `dtype` and `shape`; a shard must be a "
        "multiple of its chunks.",
    ),
)

INTRODUCTION = """\
---
tags:
  [error, Future has no attribute, forgotten result, Failed to detect format, exception, traceback, problem, help, FAQ]
---
# Troubleshooting

Find what you see, and read what to do.
The messages are those that the library gives, word for word; a test compares them.

## No error, but something is wrong

### Values are NaN, zero or the fill value

Only chunks that are not stored read as the fill value.
`array.info_complete()` counts the stored chunks, and `fsstore verify` lists the missing ones.
To get an error instead, open with `fill_missing_data_reads=False`.
xarray turns `_FillValue` into NaN; `ts.open` shows the stored numbers.
[Safety](explain/safety.md) explains what is missing and what is damaged.

### Numbers are too large or are integers

The variable is packed: `scale_factor` and `add_offset` are attributes.
`xr.open_dataset(url, engine="fsstore")` applies them, and `ts.open` does not.

### It is slow

Look at the requests first: `with ts.trace() as trace: …; print(trace)`.

- Many small reads one by one: begin them all, then ask for the results. See [Parallel reads](how-to/parallel.md).
- Each read fetches far more than you need: the chunks have the wrong shape. See [Rechunk](how-to/change-chunks.md).
- The same chunks are fetched again and again: give the [context](stores/context.md) a `cache_pool`.
- A thousand small files: put them into [shards](formats/zarr3.md#options).

### It takes too much memory

A request takes its result and at most 64 MB, or what one chunk needs if that is more.
Read in parts, or use smaller chunks. [Memory and threads](explain/memory-and-threads.md) has the rule.

### It hangs

A server may be silent for as long as the [deadline](stores/context.md#waiting-and-retries) allows.
`FSSTORE_LOG=debug` prints each request as it is made.
Ctrl-C ends the operation and leaves nothing locked.

### It asks for credentials, or the bucket is public

`storage_options={"anon": True}` asks without credentials.
[Credentials and options](how-to/options.md) has the order in which they are looked for.

## Error messages

"""


def messages() -> list[tuple[str, str]]:
    """Return what is typed and what is said, for each row of the table of mistakes, as they stand in Markdown."""
    return [(row["code"], row["said"]) for row in ROW.finditer(MISTAKES.read_text(encoding="utf-8"))]


def kind_of(said: str) -> Cure | None:
    """Return the kind of a message."""
    return next((cure for cure in CURES if re.search(cure.pattern, said)), None)


def page() -> str:
    """Return the page."""
    text = INTRODUCTION
    found = messages()
    for cure in CURES:
        rows = [(code, said) for code, said in found if kind_of(said) is cure]
        text += f"### {cure.title}\n\n{cure.cause}\n{cure.cure}\n\n| you typed | you see |\n|---|---|\n"
        text += "".join(f"| `{code}` | `` {said} `` |\n" for code, said in rows) + "\n"
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
