"""Tools for whole sets: make one from files, verify it, report on it, move it.

* `fits_repair`: sets of FITS files, corrected by what the header says
* `relocation`: relative targets of a set that is saved at another place: what is written for them, so that they
  still resolve
* `report`: what a set is about to make its reader do: targets, codecs, arrays and bytes, told before anything is
  fetched
* `scan`: making reference sets from files: kerchunk's scanners, run in processes of their own
* `verify`: checking a set against its targets: is every one reachable, and every range inside it?
"""
