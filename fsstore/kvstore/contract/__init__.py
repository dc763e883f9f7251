"""The contract of key-value store drivers, and the values that cross it.

Start with `driver`.

* `driver`: the promises of a driver, and the kind that a store registers
* `request`: the values that cross the contract: keys and their ranges, requests, answers, listings
* `ability`: what some drivers can do beyond the contract
* `batch`: ranges of one key merged into few requests, and answers as columns
"""

from fsstore.kvstore.contract.driver import NO_VALUE, Read

__all__ = ["NO_VALUE", "Read"]
