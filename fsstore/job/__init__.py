"""Jobs: copies of arrays and hierarchies in tasks that any executor runs, that can be killed and continued.

A plan is arithmetic on boxes and reads nothing; a task is a word and a number, and doing it twice does no harm; a
journal beside the target says which are finished.

The contract of a copy, whichever stores it is between:

* The source and the target are told apart before anything is written: a target that is the source, lies in it or holds
  it, under whatever name, is an error.  Only a replacement may be of the source itself.
* One job owns a target: it holds a claim there, and a second one gets an error that names the first.  The claim of a
  process that is gone is taken over.
* An array appears whole, with the write of its metadata.  The arrays of a group appear one after the other, and the
  documents of the groups last.
* A replacement is a switch: what was there can be read until the new array is whole and, with `verify`, checked.
* The same call goes on after a kill or an error, from what is there: the journal counts beside the target that it was
  written for, for the same values of the source, and for chunks that exist.  Otherwise the copy begins anew.
* A source that is written meanwhile is an error, where its store tells.

* `copy`: arrays, groups and whole hierarchies, from any format to any that can be written
* `fleet`: plans of copies in files, of which any engine runs parts
* `saved_plan`: a plan that was read, its phases and the shares of parts in them
* `planned`: one array of such a plan, from its beginning to its end
* `plan_file`: the file of a plan, read and written
* `estimate`: what a plan may cost, and the rates that this assumes
* `plan`: plans of copies: which boxes, in one pass or two, with what memory and traffic; and the reports of jobs
* `array_copy`: copying one array: its chunks as they are where both layouts agree, else box by box
* `passes`: what a job sends to its workers, and the passes of tasks that may be done in any order
* `work`: the work of workers: coroutines over the stores of a job, which do no harm when they are done twice
* `scratch`: the scratch area of a job beside its target
* `ends`: the two ends of a job, and the array that a copy makes
* `staging`: what a job believes of an earlier run, and copies that appear at once
* `delete`: deleting arrays and hierarchies, and putting a new array in the place of an old one
* `grow`: appending along a dimension, data first and metadata last
* `pyramid`: making the lower resolutions of an array, with the metadata by which viewers find them
* `verify`: whether arrays can be read as they are, and whether a copy holds what its source does; and repairing it
"""
