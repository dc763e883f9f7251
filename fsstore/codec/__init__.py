"""Codecs: bytes to arrays and back, without I/O.

`contract` says what a codec promises; every other module is one codec or a part of the chain that binds them.
"""
