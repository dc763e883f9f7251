"""Contexts: the resources that stores share, found by name.

A context hands every store the cache, the limits and the credentials it asks for.  The kinds of resources are a table
of their own, so a store names what it needs and never makes it.

* `context`: where stores find the resources they share, their names in JSON, and what the stores of a context did
* `resource_kinds`: the kinds of resources: their JSON, their defaults, their values; the contents of memory stores
"""
