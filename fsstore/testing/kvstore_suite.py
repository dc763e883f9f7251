"""The promises of a key-value store driver, as checks that run over any driver.

`CHECKS` maps names to functions.  Each takes a `Factory`: a function that returns a new store with exactly the given
contents, as a `KvPrefix`.  A driver that cannot write gets its contents some other way; for all others `filled` does
it.  A driver declares in `features` what it cannot do, and the checks then insist that it refuses.  With pytest:

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_driver(check):
        check(lambda contents: filled(KvPrefix(MyDriver()), contents))

A check fails with `AssertionError`; its docstring is the sentence of `fsstore.kvstore.contract.driver` that it proves.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsstore.testing.kvstore_reading import READING
from fsstore.testing.kvstore_steps import Check, Factory, filled
from fsstore.testing.kvstore_writing import WRITING

__all__ = ["CHECKS", "Check", "Factory", "filled"]

CHECKS: Mapping[str, Check] = {**READING, **WRITING}
"""Every check by name."""
