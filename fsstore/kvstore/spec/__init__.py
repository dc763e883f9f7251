"""Specs of key-value stores: parsing them from JSON, URLs and live objects, and opening them.

* `parse`: parsing and opening, and `KvStore.Spec`, the class that users see
* `spec_value`: the value that the library works with, and the options that a caller gives beside a place
"""
