"""What is printed: no name in a file, a set or an archive steers the terminal, whatever prints it."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import traceback
import warnings
import zipfile

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.command.main import main
from fsstore.errors import StoreError, UrlError
from fsstore.redaction import plain
from fsstore.runtime.observer import PlainFormatter

EVIL = "e\x1b]0;PWNED\x07\x1b[31m\u202e\x9b5m"
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def assert_plain(text):
    """Assert that text has no character that steers a terminal."""
    found = STEERS.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.end() + 40]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Places of several kinds whose members have such names, sound and damaged, by a word for each."""
    base = tmp_path_factory.mktemp("names")
    sound = ts.open_group(base / "sound\x1b[31m", mode="w").result()
    array = sound.create_array(EVIL, shape=[4], dtype="i4", dimension_names=[EVIL], attributes={EVIL: EVIL}).result()
    array[:] = 1
    sound.create_group(f"s{EVIL}").result().attrs[EVIL] = EVIL
    damaged = ts.open_group(base / "damaged", mode="w").result()
    damaged.create_array(EVIL, shape=[4], dtype="i4").result()[:] = 3
    (base / "damaged" / EVIL / "c" / "0").write_bytes(b"zz")
    zarray = {
        "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "compressor": None, "fill_value": 0,
        "order": "C", "filters": None,
    }  # fmt: skip
    refs = {f"{EVIL}/.zarray": json.dumps(zarray), f"{EVIL}/0": ["file:///nowhere/x"]}
    (base / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    (base / "odd.json").write_text(json.dumps({"version": 1, "refs": {EVIL: [f"{EVIL}://x", -1]}}))
    with h5py.File(base / "file.h5", "w") as file:
        file.create_dataset("e\x1b[31m", data=np.arange(4)).attrs["a\x1b[31m"] = "v\x1b[31m"
    with zipfile.ZipFile(base / "z.zip", "w") as archive:
        archive.writestr(f"{EVIL}/zarr.json", f"{{{EVIL}")
    names = {"sound": "sound\x1b[31m", "refs": "refs.json", "odd": "odd.json", "hdf5": "file.h5", "zip": "z.zip"}
    return {name: str(base / names.get(name, name)) for name in (*names, "damaged", "absent\x1b[31m")}


LINES = [
    ["info", "{}"], ["info", "--sizes", "{}"], ["ls", "{}"], ["ls", "--keys", "{}"], ["tree", "{}"], ["detect", "{}"],
    ["refs", "inspect", "{}"], ["refs", "verify", "{}"], ["cat", "{}", "0"], ["cat", "{}/" + EVIL, ""],
    ["verify", "{}"], ["stats", "{}"], ["attrs", "{}"], ["info", "{}", "--context", EVIL], ["cat", "{}", EVIL],
    ["info", "{}", "--storage-option", EVIL], [EVIL, "{}"],
]  # fmt: skip


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
@pytest.mark.parametrize("name", ["sound", "damaged", "refs", "odd", "hdf5", "zip", "absent\x1b[31m"])
def test_commands(places, capsys, name, debug):
    """No command prints such a name as it is, with `--debug` neither; and no error is one of Python's."""
    for line in LINES:
        main([each.format(places[name]) for each in line] + debug)
        said = capsys.readouterr()
        assert_plain(said.out + said.err)
        assert debug or not re.search(r"Traceback|KeyError|RecursionError|IndexError", said.err)


def test_warnings_of_a_command(places, capsys, monkeypatch):
    """A warning that names a member is printed as a sentence, and its name as text."""
    monkeypatch.setattr("fsstore.command.show.ls", lambda _: warnings.warn(f"{EVIL} is left out", stacklevel=1) or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main(["ls", places["sound"]])
    said = capsys.readouterr().err
    assert said == f"fsstore: UserWarning: {plain(EVIL)} is left out\n"


def test_reports(places):
    """What reports, errors and tables say in Python is plain as well: a notebook prints it, or a log."""
    both = ts.open_group(places["sound"]).result(), ts.open_group(places["damaged"]).result()
    assert_plain(str(ts.verify(both[1], both[0])))
    assert_plain(str(references.verify(places["refs"])))
    assert_plain(str(references.inspect(places["refs"])))
    assert_plain(both[0].tree() + repr(both[0]) + repr(both[0][EVIL]))
    with ts.trace() as trace:
        both[0][EVIL].read().result()
    assert_plain(str(trace))


@pytest.mark.parametrize("url", [f"{EVIL}://x", f"memory://a|{EVIL}:b"])
def test_carets_stand_below_what_is_shown(url):
    """The error of a URL shows its escapes, and the carets below them."""
    with pytest.raises(UrlError) as caught:
        ts.open(url).result()
    text = "".join(traceback.format_exception(caught.value))
    assert_plain(text)
    shown, carets = str(caught.value).split("\n")[1:3]
    assert shown[len(carets) - carets.count("^") : len(carets)] in plain(url)
    assert set(carets.strip()) == {"^"}


def test_errors_with_such_names():
    """The text of an error is plain, and its message is what was said."""
    error = StoreError(f"There is no {EVIL}").within("Error\nin two lines")
    assert_plain(str(error))
    assert str(error).startswith("Error\nin two lines: ")


def test_logs(monkeypatch):
    """The handler of `FSSTORE_LOG` prints no such name either."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter("%(message)s"))
    try:
        raise KeyError(EVIL)
    except KeyError:
        record = logging.LogRecord("x", logging.INFO, "", 0, "read %s", (EVIL,), sys.exc_info())
    handler.handle(record)
    assert_plain(stream.getvalue())
    assert "PWNED" in stream.getvalue()
