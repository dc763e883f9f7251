"""The house rules that a program can check: sizes, names, docstrings, and what may be used where.

Each ceiling has a table of exceptions.  An exception gives its own ceiling and a sentence of reason, and fails once
it is no longer needed.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from source_nodes import dotted_name, nodes, parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fsstore"

MODULE_LINES = 600
FUNCTION_LINES = 40
CLASS_METHODS = 20
PARAMETERS = 6
NESTING = 3
FACADE_LINES = 380
FACADE_BODY = 12

FACADES = {"TensorStore", "KvStore"}

# "module:qualified name" -> (its own ceiling, why)
LONG_MODULES: dict[str, tuple[int, str]] = {}
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}
LARGE_CLASSES: dict[str, tuple[int, str]] = {
    "fsstore.interop.zarr:ZarrStore": (28, "the verbs of a store of zarr-python, each a few lines"),
    "fsstore.reference.mapping:References": (
        21,
        "a public class: one method a change of a set, and what it says of itself",
    ),
    "fsstore.dataset.group:Group": (38, "a public class: one method a verb of daily work, each a line over `members`"),
    "fsstore.schema.schema:Schema": (25, "TensorStore's public class: a property for each constraint"),
}
MANY_PARAMETERS: dict[str, tuple[int, str]] = {
    "fsstore.reference.mapping:References.save": (
        7,
        "a public method: each is a choice of its own, and all but two are by name",
    ),
    "fsstore.serve.server:serve": (9, "a public function: each is a choice of its own, and all but one are by name"),
    "fsstore.job.copy:copy": (13, "a public function: each is a choice of its own, and all but two are by name"),
    "fsstore.job.verify:verify": (11, "a public function: each is a choice of its own, and all but two are by name"),
    "fsstore.job.grow:append": (10, "a public function, whose choices but three are by name"),
    "fsstore.job.pyramid:build_pyramid": (10, "a public function, whose choices but two are by name"),
    "fsstore.interop.dataset_write:write_dataset": (
        18,
        "a public function: each is a choice of its own, and all but two are by name",
    ),
    "fsstore.interop.torch:BatchedArrays.__init__": (9, "a public class, whose choices but two are by name"),
    "fsstore.combine.verbs:combine": (
        13,
        "a public function: each is a choice of its own, and all but two are by name",
    ),
    "fsstore.job.fleet:plan_pyramid": (7, "takes what `build_pyramid` takes, but for what only doing it needs"),
    "fsstore.job.fleet:plan_copy": (9, "takes what `copy` takes, but for what only doing it needs"),
    "fsstore.dataset.group:open_group": (7, "a public function, whose choices but one are by name"),
    "fsstore.arrays.store:open": (9, "TensorStore's public function: each is an argument of its own there"),
}
DEEP_FUNCTIONS: dict[str, tuple[int, str]] = {}

BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "impl"}
BANNED_SUFFIXES = ("_sync", "_async")
PUBLIC_COLOURS = {
    *("commit_sync", "commit_async"),  # methods of TensorStore's `Transaction`
    *("get_sync", "set_sync", "delete_sync"),  # the protocols of zarr-python
}
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")

# Only the runtime owns threads, loops and processes.
RUNTIME_ONLY = {
    "asyncio.run",
    "asyncio.Runner",
    "asyncio.new_event_loop",
    "asyncio.to_thread",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.ProcessPoolExecutor",
    "threading.Thread",
    "threading.Timer",
    "multiprocessing.Process",
    "multiprocessing.Pool",
}
RUNTIME_EXCEPTIONS: dict[str, str] = {
    "fsstore.command.terminal": "a command makes the executor that its user names, and shuts it down",
    "fsstore.runtime.pool": "the threads of the runtime, and executors that users give",
    "fsstore.testing.codec_suite": "the battery calls a codec from many threads to prove that it may be",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
NESTING_NODES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


@dataclass(frozen=True)
class Definition:
    """A function or class where it stands: `fsstore.a.b:Class.method`."""

    where: str
    node: Function | ast.ClassDef
    owner: ast.AST


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Return every module of the package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path, parsed(path))
    return found


def _inside(node: ast.AST, prefix: str) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield Definition(prefix + child.name, child, node)
            yield from _inside(child, f"{prefix}{child.name}.")
        else:
            for found in _inside(child, prefix):
                owner = node if found.owner is child else found.owner
                yield Definition(found.where, found.node, owner)


@cache
def definitions() -> list[Definition]:
    """Return every function and class of the package, nested ones included."""
    return [found for name, (_, tree) in sources().items() for found in _inside(tree, f"{name}:")]


def functions() -> list[Definition]:
    """Return every function and method of the package."""
    return [found for found in definitions() if isinstance(found.node, Function)]


def classes() -> list[Definition]:
    """Return every class of the package."""
    return [found for found in definitions() if isinstance(found.node, ast.ClassDef)]


def decorators(node: Function | ast.ClassDef) -> set[str]:
    """Return the last words of the decorators of a definition."""
    return {ast.unparse(item).split("(")[0].rsplit(".", 1)[-1] for item in node.decorator_list}


def check(sizes: dict[str, int], ceiling: int, exceptions: dict[str, tuple[int, str]]) -> None:
    """Fail on everything above its ceiling, and on exceptions that are not needed or give no reason."""
    problems = []
    for where, size in sizes.items():
        allowed, _ = exceptions.get(where, (ceiling, ""))
        if size > allowed:
            problems.append(f"{where}: {size} > {allowed}")
    for where, (allowed, reason) in exceptions.items():
        if sizes.get(where, 0) <= ceiling:
            problems.append(f"{where}: the exception is not needed")
        elif allowed <= ceiling or len(reason.split()) < 4:
            problems.append(f"{where}: an exception needs a larger ceiling and a sentence of reason")
    assert not problems, "\n" + "\n".join(problems)


def body_lines(node: Function, *, docstring: bool = True) -> int:
    """Return how many lines the body of a function takes."""
    first = node.body[0]
    if not docstring and ast.get_docstring(node) is not None:
        if len(node.body) == 1:
            return 0
        first = node.body[1]
    return (node.end_lineno or first.lineno) - first.lineno + 1


def methods(node: ast.ClassDef) -> list[Function]:
    """Return the methods of a class; overloads and setters belong to the method they complete."""
    return [
        item
        for item in node.body
        if isinstance(item, Function) and not decorators(item) & {"overload", "setter", "deleter"}
    ]


def parameters(found: Definition) -> int:
    """Return how many parameters a caller sees."""
    node = found.node
    assert isinstance(node, Function)
    arguments = node.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    bound = isinstance(found.owner, ast.ClassDef) and "staticmethod" not in decorators(node)
    return len(names) - bound


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Return how deep the statements of a function nest; `elif` is no level, an inner function starts anew."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        level = depth + (isinstance(child, NESTING_NODES) and not is_elif)
        deepest = max(deepest, nesting(child, level))
    return deepest


def test_modules_are_short():
    """No module is longer than the ceiling."""
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, (path, _) in sources().items()}
    check(sizes, MODULE_LINES, LONG_MODULES)


def test_functions_are_short():
    """No body is longer than the ceiling, docstring included; façades are measured by their own test."""
    sizes = {found.where: body_lines(found.node) for found in functions() if not _in_facade(found)}
    check(sizes, FUNCTION_LINES, LONG_FUNCTIONS)


def test_classes_have_few_methods():
    """No class but a façade has more methods than the ceiling."""
    sizes = {found.where: len(methods(found.node)) for found in classes() if found.node.name not in FACADES}
    check(sizes, CLASS_METHODS, LARGE_CLASSES)


def _in_facade(found: Definition) -> bool:
    return isinstance(found.owner, ast.ClassDef) and found.owner.name in FACADES


def test_facades_only_delegate():
    """A façade may have any number of methods, if each is a few lines and the class stays readable."""
    problems = []
    for found in classes():
        size = (found.node.end_lineno or 0) - found.node.lineno + 1
        if found.node.name in FACADES and size > FACADE_LINES:
            problems.append(f"{found.where}: {size} > {FACADE_LINES} lines")
    for found in functions():
        if _in_facade(found) and (size := body_lines(found.node, docstring=False)) > FACADE_BODY:
            problems.append(f"{found.where}: {size} > {FACADE_BODY} lines besides its docstring")
    assert not problems, "\n" + "\n".join(problems)


def test_functions_have_few_parameters():
    """No function takes more parameters than the ceiling."""
    check({found.where: parameters(found) for found in functions()}, PARAMETERS, MANY_PARAMETERS)


def test_statements_do_not_nest_deeply():
    """No function nests deeper than the ceiling."""
    check({found.where: nesting(found.node) for found in functions()}, NESTING, DEEP_FUNCTIONS)


def test_modules_are_named_after_concepts():
    """No module or folder has a name that says nothing."""
    folders = [PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    names = {(part.removesuffix(".py").strip("_"), path) for path in paths for part in path.relative_to(ROOT).parts}
    assert not sorted(str(path) for name, path in names if name in BANNED_MODULES)


@pytest.mark.parametrize("package", sorted({path.parent for path in PACKAGE.rglob("*/*.py")} - {PACKAGE}), ids=str)
def test_packages_name_their_modules(package):
    """Who reads the docstring of a package knows where everything is; nothing is named there that is gone."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = set(re.findall(r"`([a-z][a-z0-9_]*)`", text))
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert named == there - {"__init__"}


def test_the_architecture_names_the_modules_in_no_folder():
    """Who reads the page on the architecture knows what the modules at the top of the package are for."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    there = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert not sorted(name for name in there if f"`{name}`" not in text)


@pytest.mark.parametrize("page", ["architecture.md", "benchmarks.md"])
def test_pages_name_modules_that_exist(page):
    """Every module or package that a page on the inside names by its path is there."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    packages = "|".join(sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
    named = re.findall(rf"`((?:{packages})(?:/[a-z0-9_]+)+)(?:\.[a-z_]+)?`", text)
    assert not [name for name in named if not (PACKAGE / f"{name}.py").exists() and not (PACKAGE / name).is_dir()]


def test_no_name_carries_a_colour():
    """No function, class, parameter or variable says that it is synchronous or asynchronous."""
    problems = []
    for name, (path, _) in sources().items():
        for node in nodes(path):
            match node:
                case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                    pass
                case ast.arg(arg=word) | ast.Name(id=word, ctx=ast.Store()):
                    pass
                case _:
                    continue
            if word.endswith(BANNED_SUFFIXES) and word not in PUBLIC_COLOURS:
                problems.append(f"{name}:{node.lineno}: {word}")
    assert not problems, "\n" + "\n".join(problems)


def _is_public(found: Definition) -> bool:
    words = found.where.split(":")[1].split(".")
    return not any(word.startswith("_") for word in words) and isinstance(found.owner, ast.Module | ast.ClassDef)


def test_every_public_name_is_documented():
    """Modules and public functions, classes and methods have a docstring; overrides inherit theirs."""
    problems = [name for name, (_, tree) in sources().items() if ast.get_docstring(tree) is None]
    for found in definitions():
        inherited = decorators(found.node) & {"overload", "override", "setter", "deleter"}
        if _is_public(found) and not inherited and ast.get_docstring(found.node) is None:
            problems.append(found.where)
    assert not problems, "\n" + "\n".join(problems)


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


TRANSLATED = re.compile(r"(?:^|[.;]\s+)(?:Who|Whoever|Whose|Of|What)\s|;\s+(?:who|whoever|whose)\s|\b(?:he|his|him)\b")


def test_sentences_begin_with_their_subject():
    """No docstring or comment has a sentence that begins with `who`, `of` or `what`; callers are no men."""
    problems = []
    for name, (path, _) in sources().items():
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        texts = [(token.start[0], token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]
        texts += [
            (node.lineno, node.value.value)
            for node in nodes(path)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]
        for line, text in texts:
            whole = " ".join(part.strip() for part in text.splitlines())
            problems += [f"{name}:{line}: {found[0].strip()}" for found in TRANSLATED.finditer(whole)]
    assert not problems, "\n" + "\n".join(problems)


def test_nothing_is_left_unfinished():
    """No comment or docstring postpones work."""
    problems = []
    for pattern in (
        "fsstore/**/*.py",
        "tests/**/*.py",
        "benchmarks/**/*.py",
        "examples/**/*.py",
        "docs/**/*.md",
        "*.md",
    ):
        for path in ROOT.glob(pattern):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if UNFINISHED.search(line):
                    problems.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not problems, "\n" + "\n".join(problems)


def test_every_silenced_rule_has_its_code_and_reason():
    """`noqa` and `type: ignore` name what they silence, and the rest of the line says why."""
    silenced = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<code>:\s*[A-Z0-9, ]+|\[[a-z0-9, -]+\])?(?P<rest>.*)")
    problems = []
    for name, (path, _) in sources().items():
        for number, comment in _comments(path):
            found = silenced.search(comment)
            if found and (not found["code"] or len(found["rest"].strip(" #-:()")) < 5):
                problems.append(f"{name}:{number}: {comment}")
    assert not problems, "\n" + "\n".join(problems)


def test_no_bare_except():
    """Every handler says what it expects."""
    problems = []
    for name, (path, _) in sources().items():
        handlers = (node for node in nodes(path) if isinstance(node, ast.ExceptHandler) and node.type is None)
        problems += [f"{name}:{node.lineno}" for node in handlers]
    assert not problems, "\n" + "\n".join(problems)


def _imported_names(path: Path) -> dict[str, str]:
    """Return local name -> full dotted name, for everything the module imports."""
    names = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for item in node.names:
                local = item.asname or item.name.split(".")[0]
                names[local] = item.name if item.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                names[item.asname or item.name] = f"{node.module}.{item.name}"
    return names


def _uses(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and full dotted name of every use of an imported name."""
    imported = _imported_names(path)
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name):
            head, _, tail = (dotted_name(node) or "").partition(".")
            if head in imported:
                yield node.lineno, imported[head] + (f".{tail}" if tail else "")


def test_only_the_runtime_owns_threads_and_loops():
    """No other module starts threads, processes or event loops."""
    problems = []
    for name, (path, _) in sources().items():
        if (
            name == "fsstore.runtime.execution"
            or name.startswith("fsstore.runtime.execution.")
            or name in RUNTIME_EXCEPTIONS
        ):
            continue
        problems += [f"{name}:{line}: {used}" for line, used in _uses(path) if used in RUNTIME_ONLY]
        problems += [
            f"{name}:{node.lineno}: run_in_executor"
            for node in nodes(path)
            if isinstance(node, ast.Attribute) and node.attr == "run_in_executor"
        ]
    assert not problems, "\n" + "\n".join(sorted(set(problems)))


# Python over a lock: Ctrl-C between two steps leaves the lock taken.  Plain locks wait for their own thread when the
# collector calls a finalizer that uses the same store.  So locks come from `runtime.fork`, waiting from `runtime.future`.
BREAKABLE = {
    *(f"threading.{name}" for name in ("Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "Semaphore")),
    *(f"queue.{name}" for name in ("LifoQueue", "PriorityQueue", "Queue")),
    *(f"concurrent.futures.{name}" for name in ("Future", "as_completed", "wait")),
    "_thread.allocate_lock",
}
RUNTIME_LOCKS = {"threading.RLock"}


def test_waiting_and_locks_are_those_of_the_runtime():
    """No module waits in a way that Ctrl-C breaks, and none but the registry of forks makes a lock of threads."""
    problems = []
    for name, (path, _) in sources().items():
        banned = BREAKABLE if name == "fsstore.runtime.fork" else BREAKABLE | RUNTIME_LOCKS
        problems += [f"{name}:{line}: {used}" for line, used in _uses(path) if used in banned]
    assert not problems, "\n" + "\n".join(sorted(set(problems)))


# What changes between calls is `OfProcess` or `OfThread`, so that a forked child forgets all of it.
STATE = {
    *("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "CachePool", "local", "ContextVar"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
}
STATE_EXCEPTIONS = {"fsstore.kvstore.ledger"}  # a variable of the caller's task, which a child goes on with
FORK_HOOKS = {"fsstore.runtime.fork.in_child", "fsstore.runtime.fork.before_fork"}


def test_what_modules_keep_is_known_to_the_runtime():
    """No module keeps state but through the runtime: no globals that change, no hooks at forks of its own."""
    problems = []
    for name, (path, _) in sources().items():
        if name.startswith("fsstore.runtime") or name in STATE_EXCEPTIONS:
            continue
        problems += [f"{name}:{line}: {used}" for line, used in _uses(path) if used in FORK_HOOKS]
        problems += [f"{name}:{node.lineno}: global" for node in nodes(path) if isinstance(node, ast.Global)]
        for node in parsed(path).body:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node))
            is_constant = target.lstrip("_").isupper() or target == "__all__"
            makes = (
                isinstance(value, ast.Call) and (dotted_name(value.func) or "").rpartition(".")[2] in STATE
            ) or isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))
            problems += [f"{name}:{node.lineno}: {target}"] * (makes and not is_constant)
    assert not problems, "\n" + "\n".join(sorted(set(problems)))


# Words of names that stand for amounts which trade one cost against another.
AMOUNTS = {
    *("AHEAD", "ATTEMPTS", "BATCH", "BLOCK", "BLOCKS", "BUDGET", "BYTES", "COST", "DENSE", "EARLY", "FEW", "FROM"),
    *("GROUP", "HEAD", "INLINE", "KEPT", "LARGE", "LEAST", "MANY", "ONCE", "PAGE", "PART", "PARTS", "PATIENCE"),
    *("PAUSE", "PIECE", "PIECES", "PORTION", "READERS", "REMEMBERED", "S", "SHARE", "SLOWEST", "SMALL", "STEP"),
    *("THREADS", "TIMEOUT", "TOGETHER", "TRIES", "TRUSTED", "TURN", "WINDOW", "WORKERS", "WORTH", "WRITERS"),
}
# What is refused beyond it belongs to what is accepted, and stands where that is checked.
LIMITS = {"MAX", "MOST", "LONGEST", "LARGEST", "DEEPEST"}
# module -> why its amounts are no choice of ours, or change what comes out
GIVEN: dict[str, str] = {
    "codec.zfp": "the format of zfp",
    "codec.image_header": "the formats of images",
    "codec.numcodecs.kerchunk_v2": "the formats of filters of HDF5",
    "codec.numcodecs.numeric_v2": "the formats of zfp and pcodec",
    "codec.contract": "how far anything may decompress",
    "codec.blosc": "the format of blosc",
    "codec.zstd": "blocks of zstd that a few bytes may hold",
    "combine.facts": "how much a report shows",
    "job.pyramid": "which levels an image is given",
    "kvstore.compressed": "what a block of zstd may hold",
    "kvstore.zip_driver": "how far a member may decompress",
    "kvstore.local.file": "what NumPy and Linux do with large values",
    "kvstore.client.object_store": "a page of a listing of S3",
    "kvstore.client.web": "what servers that think in blocks send",
    "icechunk.encoding": "the format of Icechunk, and what a block of zstd may hold",
    "icechunk.document": "the format of Icechunk",
    "ocdbt.encoding": "bytes that may hide no more than a limit",
    "ocdbt.node": "the format of OCDBT",
    "ocdbt.commit": "a page of a disk",
    "precomputed.format": "voxels of a block of compressed segmentation",
    "reference": "how much of a document tells that it is one",
    "reference.table.table": "a number that stands for inline values",
    "scan.fits_header": "the format of FITS",
    "scan.hdf5.heap": "the format of HDF5",
    "scan.hdf5.index": "the format of HDF5",
    "testing.kvstore_suite": "what the battery does",
}


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Tuple(elts=elements):
            return all(_is_number(element) for element in elements)
    return False


def _amounts(source: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every constant of a module that is an amount by its name, and a plain number."""
    for node in source.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            words = set(name.id.split("_")) if isinstance(name, ast.Name) else set()
            if words & AMOUNTS and not words & LIMITS and _is_number(value):
                yield node.lineno, ast.unparse(name)


def test_numbers_that_tune_stand_in_one_place_a_package():
    """Amounts stand in `runtime/tuning`, or all those of a package in one of its modules."""
    homes: dict[str, dict[str, list[str]]] = {}
    given = set()
    for name, (_, tree) in sources().items():
        below = name.removeprefix("fsstore.")
        found = [f"{name}:{line}: {constant}" for line, constant in _amounts(tree)]
        if below in GIVEN:
            given |= {below} if found else set()
        elif found:
            homes.setdefault(below.split(".")[0], {})[below] = found
    problems = [f"{module}: has no amounts any more" for module in GIVEN.keys() - given]
    for package, modules in homes.items():
        if len(modules) > 1:
            problems += [each for module in modules if module != f"{package}.tuning" for each in modules[module]]
    assert not problems, "\n" + "\n".join(sorted(problems))


def test_numbers_that_tune_say_what_they_trade():
    """Every number of a `tuning` module has a comment of some words, is used, and the module holds nothing else.

    All together, with those that stand in the module that uses them, they are no more than a person can set again.
    """
    counted = 0
    everything = Counter(
        found for path in PACKAGE.rglob("*.py") for found in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    )
    problems = []
    for name, (path, tree) in sources().items():
        if not name.endswith(".tuning"):
            counted += 0 if name.removeprefix("fsstore.") in GIVEN else len(list(_amounts(tree)))
            continue
        comments = dict(_comments(path))
        for node in tree.body[1:]:
            if isinstance(node, ast.ImportFrom):  # what others are computed from
                continue
            said = comments.get(node.lineno) or comments.get(node.lineno - 1) or ""
            constant = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            counted += 1
            if not constant.isupper() or len(said.split()) < 4 or everything[constant] < 2:
                problems.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not problems, "\n" + "\n".join(problems)
    assert counted <= 100


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("_KEPT_BYTES = 64 << 20", ["_KEPT_BYTES"]),
        ("_FIRST_S, _LAST_S = 0.1, -1", ["_FIRST_S", "_LAST_S"]),
        ("_MOST_BYTES = 2**31", []),
        ("_MAGIC = 0x89", []),
        ("_KEPT_BYTES = struct.calcsize('<I')", []),
        ("_PAUSES_S = (0.1, 0.2)\nPAUSE_S: Final = 3", ["_PAUSES_S", "PAUSE_S"]),
    ],
)
def test_amounts_are_told_by_their_names(source, names):
    """An amount is a plain number whose name has a word for one, and no word for a limit."""
    assert [name for _, name in _amounts(ast.parse(source))] == names


CONTRACTS = {"codec/contract.py"}  # where abilities are looked up
SUBJECTS = re.compile(r"(?:driver|codec|pack|stages?(?:\[\d\])?|step|last|inner|factory|kind)\Z")


def _subject(call: ast.Call) -> str:
    """Return the last name of what an attribute is looked up of: `driver` of `getattr(self._driver, ...)`."""
    return ast.unparse(call.args[0]).rpartition(".")[2].lstrip("_") if call.args else ""


def test_abilities_of_drivers_and_codecs_are_asked_for_in_one_place():
    """No module looks for an optional attribute of a driver, codec or kind by its name but the one that lists them."""
    problems = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if where in CONTRACTS or where.startswith(("interop/", "testing/", "kvstore/client/", "kvstore/root/")):
            continue
        for node in nodes(path):
            is_lookup = isinstance(node, ast.Call) and dotted_name(node.func) in ("getattr", "hasattr")
            if is_lookup and isinstance(node, ast.Call) and SUBJECTS.search(_subject(node)):
                problems.append(f"{where}:{node.lineno}: {ast.unparse(node)}")
    assert not problems, "\n" + "\n".join(problems)


REFUSING = {
    "fsstore.arrays.protocols:Unread.__getattr__": "raises, and names the word that is close",
    "fsstore.runtime.future:Awaited.__getattr__": "raises, and says that the result has the word",
}
"""Lookups of attributes that find nothing, and why they are there."""


def test_no_metaclasses_and_no_attribute_forwarding():
    """Every definition can be found by searching its name."""
    problems = []
    for found in definitions():
        if isinstance(found.node, ast.ClassDef) and any(item.arg == "metaclass" for item in found.node.keywords):
            problems.append(f"{found.where}: metaclass")
        looked_up = found.node.name in {"__getattr__", "__getattribute__"}
        if looked_up and isinstance(found.owner, ast.ClassDef) and found.where not in REFUSING:
            problems.append(found.where)
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize("folder", ["unit", "contract", "interop", "property", "fault", "docs"])
def test_every_test_states_its_property(folder):
    """Each test function has a docstring."""
    problems = []
    for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
        for node in nodes(path):
            if isinstance(node, Function) and node.name.startswith("test_") and ast.get_docstring(node) is None:
                problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "depth"),
    [
        ("def f():\n    pass", 0),
        ("def f():\n    if a:\n        pass\n    elif b:\n        pass\n    else:\n        pass", 1),
        (
            "def f():\n    for a in b:\n        with c:\n            try:\n                pass\n            finally:\n                pass",
            3,
        ),
        ("def f():\n    if a:\n        def g():\n            if b:\n                pass", 1),
        ("def f():\n    if a:\n        pass\n    else:\n        if b:\n            pass\n        c()", 2),
        ("async def f():\n    async for a in b:\n        match a:\n            case 1:\n                pass", 2),
    ],
)
def test_nesting_counts_blocks(source, depth):
    """The measure of nesting counts compound statements, not branches of one statement."""
    assert nesting(ast.parse(source).body[0]) == depth
