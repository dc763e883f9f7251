"""The chunk engine: one way to read and write chunked arrays, whatever their format.

`model` says what is stored, `grid` and `keys` where, `plan` turns a request into cells (pure), `place` moves elements
between a chunk and the caller's array, `read` and `write` do the input and output in windows of cells.
"""
