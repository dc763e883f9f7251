"""Jobs: copies of arrays and hierarchies in tasks that any executor runs, that can be killed and continued.

A plan is arithmetic on boxes and reads nothing; a task is a plain function of stores and a box, and doing it twice does
no harm; a journal beside the target says which are finished.

* `array_copy`: copying one array: its chunks as they are where both layouts agree, else box by box
* `copy`: copy and plan_copy: arrays, groups and whole hierarchies, from any format to any that can be written
* `new_target`: the array a copy makes: in which format, with which chunks and codec, as the caller wishes or as the
  source has them
* `plan`: plans of copies: which boxes, in one pass or two, with what memory and traffic
* `report`: what a finished copy says of itself
* `verify`: whether arrays can be read as they are, and whether a copy holds what its source does
* `work`: what workers do: plain functions of stores and boxes, which do no harm when they are done twice
"""
