"""The chunk engine: one way to read and write chunked arrays, whatever their format.

* what is stored: `model` says it, `grid` and `keys` say where; `chunks` is that of one open array;
* pure: `request` brings index transforms to the engine, `plan` cuts a request into cells (`boxes`: many small ones at
  once, `cell_run`: cells that are made when they are asked for, `shard_entries`: those of sub-chunks);
* bytes: `source` fetches them, from keys or from within shards, and `cache` keeps what they were decoded to;
* elements: `allocation` gives them memory, `place` moves them between a chunk and the caller's array;
* `read` and `joint` make reads, alone and together, of a `window` of cells at a time, and `flow` of some at once;
  `shard_window` cuts shards into windows;
* `write` and `joint_write` make writes, alone and together; `writer` stores what `encode` returns, for which it reads a
  `stored_shard` little by little, `rewritten` knows what was encoded a moment ago, and `write_order` keeps the order of
  those that touch the same chunks.
"""
