"""Observation, for people and for other tools: traces and metrics over the counters of the runtime.

* `metrics`: what all stores of the process have done, and operations as spans of OpenTelemetry
* `trace`: what a block of code asks of its stores: a table, and a picture of when
"""
