"""Observation, for people and for other tools: traces, metrics and spans over the counters of the runtime.

* `metrics`: the functions of TensorStore that tell what all stores of the process have done
* `spans`: operations as spans of OpenTelemetry
* `timeline`: the operations of a trace as a picture: SVG, or characters for a terminal
* `trace`: what a block of code asks of its stores: a table, and a picture of when
"""
