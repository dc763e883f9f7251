"""Serving arrays to tools that only read zarr over HTTP: read-only, from this machine unless told otherwise.

* `answer`: requests for keys of a store, and what is answered: ranges, conditions, listings
* `server`: the HTTP server: connections, tokens and origins
"""
