"""The names of TensorStore 0.1.86: every module, class, member and named argument is here, or is said to be left out."""

import inspect
import re
from pathlib import Path

import pytest
import tensorstore

import fsstore

DIFFERENCES = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
COPIED_BY_REDUCE = {"__setstate__", "__getstate__", "__copy__", "__deepcopy__"}  # values have one way to be rebuilt
OF_THE_MACHINERY = {"__entries", "__abstractmethods__", "__dict__", "__weakref__", "__type_params__", "__del__"}


def members(owner, of):
    """Return the public names of something and those that Python itself uses."""
    names = dir(owner) if of == "module" else [name for name in dir(owner) if hasattr(type(owner), "mro")]
    return {name for name in names if not re.match(r"_($|[^_])", name)}


def walked(theirs, ours, path=""):
    """Yield `(path, theirs, ours)` of all public names, ours None where it is missing."""
    of = "module" if inspect.ismodule(theirs) else "class"
    for name in sorted(members(theirs, of)):
        if of == "module" and name.startswith("_"):
            continue
        if name in COPIED_BY_REDUCE | OF_THE_MACHINERY:
            continue
        one = getattr(theirs, name)
        other = getattr(ours, name, None) if name != "__hash__" else one
        yield path + name, one, other if hasattr(ours, name) else None
        if (inspect.isclass(one) and path.count(".") < 2 and name != "__class__") or inspect.ismodule(one):
            if other is not None:
                yield from walked(one, other, f"{path}{name}.")


PAIRS = list(walked(tensorstore, fsstore))


def left_out():
    """Return the names that the table of the documentation lists."""
    text = DIFFERENCES.read_text(encoding="utf-8").partition("## Names that are left out")[2]
    return set(re.findall(r"`([\w.]+)`", text.partition("\n## ")[0]))


def test_every_name_exists():
    """What TensorStore has and we have not stands in the table of names that are left out, and nothing else does."""
    missing = {path for path, theirs, ours in PAIRS if ours is None and theirs is not None}
    of_members = {"OutputIndexMethod.name", "OutputIndexMethod.value"}  # an enumeration here: its members have them
    assert missing - {"annotations"} - of_members <= left_out()
    assert {name for name in left_out() if any(path == name for path, *_ in PAIRS)} <= missing


def _classes(library):
    """Return the module and the qualified name of every public class, also of those inside others."""
    found = {}
    left = [(name, getattr(library, name)) for name in dir(library) if name[0] != "_"]
    for path, each in left:
        if isinstance(each, type) and each.__module__.partition(".")[0] == library.__name__ and path not in found:
            found[path] = each.__module__, each.__qualname__
            left += [(f"{path}.{name}", part) for name, part in vars(each).items() if name[0] != "_"]
    return found


def test_where_classes_say_they_are():
    """Public classes say that they are of `fsstore`, under the name by which users reach them, as TensorStore's do."""
    ours = _classes(fsstore)
    assert ours == {path: ("fsstore", path) for path in ours}
    theirs = _classes(tensorstore)
    assert {path for path in theirs if not path.startswith("_")} <= set(ours)
    assert len(theirs) > 30


def test_what_is_hashed():
    """Every class whose objects TensorStore hashes has objects that can be hashed."""
    classes = [(path, one, other) for path, one, other in PAIRS if inspect.isclass(one) and inspect.isclass(other)]
    by_value = {"Context.Spec", "KvStore.ReadResult"}  # compared by identity there
    missing = {path for path, one, other in classes if one.__hash__ is not None and other.__hash__ is None}
    assert missing == by_value


def test_modules_list_their_names():
    """`dir` shows all public names, also those that are imported when they are first used."""
    assert set(fsstore.__all__) <= set(dir(fsstore))


def named_arguments(function, name):
    """Return the argument names in the signatures that the documentation of a function of TensorStore begins with."""
    found = set()
    for line in (function.__doc__ or "").splitlines():
        signature = re.match(rf"(?:\d+\. )?{re.escape(name)}\((.*)\)(?: -> .*)?$", line)
        if signature:
            text = signature[1]
            while (plain := re.sub(r"[\[({][^\[\](){}]*[\])}]", "", text)) != text:
                text = plain
            found |= {part.strip().partition(":")[0].partition("=")[0] for part in text.split(",")}
    return {each for each in found if each.isidentifier() and not re.match(r"self$|arg\d+$", each)}


ARGUMENTS = [
    pytest.param(path, ours, names, id=path)
    for path, theirs, ours in PAIRS
    if ours is not None and callable(ours) and not inspect.isclass(theirs)
    if not path.split(".")[-1].startswith("__") or path.endswith(".__init__")
    if (names := named_arguments(theirs, path.split(".")[-1]))
]


@pytest.mark.parametrize(("path", "ours", "names"), ARGUMENTS)
def test_named_arguments(path, ours, names):
    """What TensorStore takes by name is taken by that name."""
    parameters = inspect.signature(ours).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    by_name = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    assert names <= by_name


def test_there_is_something_to_compare():
    """The walk sees the classes and their signatures."""
    assert len(PAIRS) > 900
    assert len(ARGUMENTS) > 60
