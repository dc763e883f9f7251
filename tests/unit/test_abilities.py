"""Abilities of key-value store drivers: named by those that have them, asked for in one place, passed on by adapters."""

from __future__ import annotations

import pytest

from fsstore.filesystem.view import ViewDriver
from fsstore.kvstore.compressed import CompressedDriver
from fsstore.kvstore.contract import ability
from fsstore.kvstore.contract.ability import ListsDocuments, MayBeMissing, PassesOn, ReadsNow, able
from fsstore.kvstore.contract.driver import begin_creating
from fsstore.kvstore.engine.driver import EngineDriver, SingleWriterDriver
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.live import MappingDriver, ZarrStoreDriver
from fsstore.kvstore.transaction import TransactionalDriver
from fsstore.kvstore.zip_driver import ZipDriver
from fsstore.ocdbt.driver import OcdbtDriver
from fsstore.reference.driver import ReferenceDriver
from fsstore.testing.doubles import Faulty, Recording

ABILITIES = [
    kind
    for kind in vars(ability).values()
    if isinstance(kind, type) and kind.__module__ == ability.__name__ and kind is not PassesOn
]
DRIVERS = [
    CompressedDriver, EngineDriver, LocalDriver, MappingDriver, MemoryDriver, OcdbtDriver, Recording, ReferenceDriver,
    SingleWriterDriver, TransactionalDriver, ViewDriver, ZarrStoreDriver, ZipDriver,
]  # fmt: skip


class Missing(MemoryDriver, MayBeMissing):
    """A store that counts the announcements that it will be written."""

    announced = 0

    def begin_creating(self):
        """Count."""
        self.announced += 1


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("kind", ABILITIES)
def test_a_driver_names_the_abilities_whose_methods_it_has(driver, kind):
    """A method that no ability announces is found by nobody; an ability without its methods fails when it is used."""
    own = {name for name in vars(kind) if not name.startswith("_")}
    assert own
    methods = {name for name in own if callable(vars(kind)[name])}
    has = {name for name in methods if callable(getattr(driver, name, None)) and name in _defined(driver)}
    assert has == (methods if issubclass(driver, kind) else set())


def _defined(driver):
    return {name for kind in driver.__mro__ if kind.__module__ != ability.__name__ for name in vars(kind)}


def test_what_is_not_named_is_not_there():
    """A driver without the ability gives None, and so does an adapter over one."""
    assert able(MemoryDriver(), ListsDocuments) is None
    assert able(SingleWriterDriver(MemoryDriver()), ListsDocuments) is None


def test_a_driver_is_returned_as_itself():
    """Nothing is wrapped: what is asked of the ability is asked of the driver."""
    driver = MemoryDriver()
    assert able(driver, ReadsNow) is driver


def test_adapters_pass_on_what_they_name_and_nothing_else():
    """Through any number of them; reads are counted by a double, so it does not pass on ways around that."""
    store = Missing()
    through = Recording(SingleWriterDriver(Faulty(store)))
    begin_creating(through)
    assert store.announced == 1
    assert able(through, ReadsNow) is None
