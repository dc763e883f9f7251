"""HDF5 files together with the files they refer to, all of these under the policy of reference sets.

* `external_storage`: values of a dataset in raw files beside the HDF5 file
* `mount`: links to other files, as if what they lead to lay here
* `other_file`: the HDF5 files that one refers to, each opened once
* `scanner`: the scanner of HDF5
* `stack`: a virtual dataset as a stack of its sources: their chunks where these fit, else put together here
* `stack_table`: the chunk table of a virtual dataset, made of those of its sources
"""
