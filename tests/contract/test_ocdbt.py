"""The battery of key-value stores over OCDBT databases of several shapes."""

import itertools

import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.ocdbt.driver import open_database
from fsstore.testing.doubles import Slow
from fsstore.testing.kvstore_suite import CHECKS, filled

SHAPES = {
    "default": {},
    "tiny nodes": {"config": {"max_decoded_node_bytes": 1, "max_inline_value_bytes": 1, "compression": None}},
    "numbered": {"config": {"manifest_kind": "numbered", "version_tree_arity_log2": 1}},
    "assumed": {"assume_config": True, "target_data_file_size": 10},
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ocdbt_in_memory(check, shape):
    """An OCDBT database in memory keeps every promise of a store."""
    check(lambda contents: filled(KvPrefix(open_database(KvPrefix(MemoryDriver()), shape)), contents))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_ocdbt_in_files(check, tmp_path):
    """An OCDBT database in local files keeps every promise of a store."""
    numbers = itertools.count()

    def make(contents):
        base = KvPrefix(LocalDriver(), f"{tmp_path}/{next(numbers)}/")
        return filled(KvPrefix(open_database(base), "some/path/"), contents)

    check(make)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_ocdbt_over_a_store_that_waits(check, kind):
    """An OCDBT database over a store whose coroutines suspend keeps every promise on the event loop."""
    members = {"config": {"manifest_kind": kind}}
    check(lambda contents: filled(KvPrefix(open_database(KvPrefix(Slow(MemoryDriver())), members)), contents))
