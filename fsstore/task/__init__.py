"""Work in many pieces: run on any executor, noted as it is done, and told about while it runs.

Copies of arrays and scans of a thousand files are such work; nothing here knows what the pieces do.

* `claim`: which job may change a place: one at a time, also of other processes and hosts
* `display`: how progress is shown to people: by tqdm if it is installed, as a bar in a notebook, or as a line of text
* `journal`: what a job has finished, kept in a store, so that the same call continues after it was killed
* `pace`: how many pieces of work make a task: as many as take a few seconds, by how long those before them took
* `progress`: what a long operation tells while it runs: how much is done, how fast, and how long the rest takes
* `runner`: running tasks on an executor: a bounded number under way, failures tried again, finished ones noted
* `tuning`: the numbers that tune it, each with what it trades
"""
