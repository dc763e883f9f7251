"""Long work in tasks: what runs them, what they tell, and what is remembered of those that are finished.

* `journal`: what a job has finished, kept beside its target, so that the same call continues after it was killed
* `progress`: what a long operation tells while it runs: how much is done, how fast, and how long the rest takes
* `runner`: running tasks on an executor: a bounded number under way, failures tried again, finished ones noted
"""
