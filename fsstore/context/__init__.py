"""Contexts: the resources that stores share, found by name.

A context hands every store the cache, the limits and the credentials it asks for.  The kinds of resources are a table
of their own, so a store names what it needs and never makes it.

* `context`: contexts: where stores find the resources they share
* `memory_storage`: the contents of an in-memory store, which live as long as the context that holds them
* `resource_kinds`: the kinds of context resources: their JSON, their defaults, and the values that drivers get
* `resource_names`: how the resources of a store are written down, so that opening the JSON again shares what was shared
* `statistics`: what the stores of a context have done
"""
