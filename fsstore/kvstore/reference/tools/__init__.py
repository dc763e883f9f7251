"""Tools for whole sets: make one from files, verify it, report on it, move it.

* `fits_repair`: sets of FITS files, corrected by what the header says
* `hdf5_scan`: scanning HDF5 with kerchunk so that what comes out is what the file holds, or is left out by name
* `left_out`: what a scan leaves out of its documents, said as warnings inside the scanner's process
* `netcdf3_scan`: scanning NetCDF 3 with kerchunk, with the records where the header says they are
* `rechunk`: smaller chunks of an array that is not compressed: ranges of those it has
* `relocation`: relative targets of a set that is saved at another place: what is written for them, so that they
  still resolve
* `report`: what a set is about to make its reader do: targets, codecs, arrays and bytes, told before anything is
  fetched
* `scan`: making reference sets from files: kerchunk's scanners, run in processes of their own
* `verify`: checking a set against its targets: is every one reachable, and every range inside it?
"""
