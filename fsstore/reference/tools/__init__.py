"""Tools for whole sets: make one from files, verify it, report on it, move it.

* `rechunk`: smaller chunks of an array that is not compressed: ranges of those it has
* `relocation`: relative targets of a set that is saved at another place: what is written for them, so that they
  still resolve
* `report`: what a set is about to make its reader do: targets, codecs, arrays and bytes, told before anything is
  fetched
* `verify`: checking a set against its targets: is every one reachable, and every range inside it?
"""
