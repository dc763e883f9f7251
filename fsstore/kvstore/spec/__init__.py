"""Specs of key-value stores: parsing them from JSON, URLs and live objects, and opening them.

* `kv_spec`: where a key-value store is and how it is opened: KvStore.Spec, the face of the value
* `opening`: opening the specs of key-value stores: resources are bound, bases opened first
* `parse`: parsing the specs of key-value stores: JSON objects, URL pipelines, live objects
* `place`: what people name a place with, as a type
* `spec_value`: what a spec of a key-value store says: the value that the library works with
* `storage_option`: the options that a caller gives beside a place, put into the spec of its root
"""
