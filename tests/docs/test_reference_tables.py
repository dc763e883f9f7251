"""The tables of the reference are complete: URL schemes, environment variables, options of contexts and errors."""

from __future__ import annotations

import re
from pathlib import Path

from fsstore import errors
from fsstore.context import resource_kinds
from fsstore.values import registry

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
VARIABLE = re.compile(r'"((?:AWS|FSSTORE|GOOGLE|GCE|AZURE|SSL)_[A-Z0-9_]*[A-Z0-9])"')


def test_every_scheme_is_listed():
    """What may stand in a URL is on the page, and nothing else is."""
    text = (REFERENCE / "schemes.md").read_text(encoding="utf-8").split("## Protocols")[0]
    listed = set(re.findall(r"`([a-z0-9_-]+):(?://)?`", text))
    known = {
        scheme
        for table in (registry.kvstores, registry.drivers)
        for name in table.names()
        for scheme in table.get(name).schemes
    }
    assert listed == known


def test_every_environment_variable_is_listed():
    """Each name that stands as text in the source is on the page."""
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    used = {
        name for path in (ROOT / "fsstore").rglob("*.py") for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    assert {"FSSTORE_LOG", "AWS_REGION"} <= used
    assert not sorted(used - set(re.findall(r"`([A-Z0-9_]+)`", text)))


def test_every_option_of_a_context_is_listed():
    """The table of resources has each that a spec may name, and no other."""
    text = (ROOT / "docs" / "stores" / "context.md").read_text(encoding="utf-8")
    rows = [row for row in text.split("\n\n")[2].splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == set(resource_kinds.KINDS)


def test_every_error_is_in_the_reference():
    """The page of errors shows the module, whose list has every class of the family."""
    assert "::: fsstore.errors" in (REFERENCE / "errors.md").read_text(encoding="utf-8")
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes - {"Exception"} <= {*errors.__all__, *(name for name in classes if name.startswith("_"))}
