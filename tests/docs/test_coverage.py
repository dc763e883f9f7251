"""Documentation is complete: public names, drivers, codecs, commands, and links inside the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import fsstore
from fsstore.context import resource_kinds as context_resources
from fsstore.values import dtypes, registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])


def _text(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md")))


def test_every_public_name_has_a_reference_entry():
    """Each name in `fsstore.__all__` is documented by a directive, or in the table of data types."""
    text = _text(DOCS / "reference")
    documented = set(re.findall(r"^::: fsstore\.([\w.]+)$", text, re.MULTILINE))
    documented |= {name for name in dtypes.NAMES if f"`{name}`" in text}
    assert not sorted(set(getattr(fsstore, "__all__", ())) - documented)


def test_every_reference_entry_exists():
    """No directive documents a name that is gone."""
    from pkgutil import resolve_name

    for name in re.findall(r"^::: (fsstore[\w.]*)$", _text(DOCS / "reference"), re.MULTILINE):
        resolve_name(name)


@pytest.mark.parametrize(
    ("table", "folder"),
    [(registry.kvstores, "stores"), (registry.drivers, "formats"), (registry.codecs, "codecs.md")],
    ids=["stores", "drivers", "codecs"],
)
def test_every_registered_name_is_documented(table, folder):
    """Each name users may write in a spec stands, as code, in the pages about its kind."""
    page = DOCS / folder
    text = page.read_text() if page.is_file() else _text(page)
    assert not [name for name in table.names() if f"`{name}`" not in text]


def test_every_context_resource_is_documented():
    """Each resource of a context stands in the table about them."""
    text = (DOCS / "stores" / "context.md").read_text(encoding="utf-8")
    assert not [name for name in context_resources.KINDS if f"`{name}`" not in text]


@pytest.mark.parametrize("folder", ["stores", "formats"])
def test_driver_pages_have_the_same_headings(folder):
    """A reader who knows one page about a driver knows where to look in all of them."""
    headings = ["JSON", "URL", "Options", "Limits", "Example"]
    for path in sorted((DOCS / folder).glob("*.md")):
        if path.stem not in {"index", "context", "detection"}:
            found = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert found == headings, path.name


def test_every_option_of_a_documented_store_is_documented():
    """The page of a store names each context resource that it takes."""
    problems = []
    for path in sorted((DOCS / "stores").glob("*.md")):
        kind = registry.kvstores.get(path.stem)
        if kind is not None:
            text = path.read_text(encoding="utf-8")
            problems += [f"{path.name}: {name}" for name in kind.resources if f"`{name}`" not in text]
    assert not problems


def test_every_extra_is_documented():
    """The table of extras has exactly those that can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "reference" / "extras.md").read_text(encoding="utf-8")
    table = page.split("| extras | for |\n")[1].split("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(project["optional-dependencies"])


def test_every_page_is_reachable():
    """Each page of the docs stands in the navigation."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert not [page for page in pages if page not in navigation]


def test_commands_exist():
    """Every `make` command a page mentions is a target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    mentioned = {
        word for path in PAGES for word in re.findall(r"`?\bmake ([a-z-]+)`", path.read_text(encoding="utf-8"))
    }
    assert mentioned <= targets


def test_links_inside_the_repository_lead_somewhere():
    """Relative links of pages that mkdocs does not check lead to files."""
    problems = []
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not (ROOT / target).exists():
                problems.append(f"{path.name}: {target}")
    assert not problems
