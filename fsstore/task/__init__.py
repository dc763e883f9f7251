"""Work in many pieces: run on any executor, noted as it is done, and told about while it runs.

Copies of arrays and scans of a thousand files are such work; nothing here knows what the pieces do.

* `claim`: which job may change a place, one at a time, also of other processes and hosts; and the journal of what it
  has finished, so that the same call continues after it was killed
* `runner`: running tasks on an executor: a bounded number under way, failures tried again, progress shown
"""
