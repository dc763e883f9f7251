"""Serving arrays to tools that only read zarr over HTTP: read-only, from this machine unless told otherwise.

* `listener`: an HTTP listener that the servers of this library share, and answers to requests for keys
* `server`: the server of stores: places by name, tokens and origins, links that open Neuroglancer
"""
