"""The command line: each command parses arguments, calls one door of the library, and prints the result.

* `main`: the table of all commands, their arguments and examples; completions; errors as lines and exit codes
* `terminal`: places and selections in arguments, and printing in which names cannot steer the terminal
* `show`: the commands that only read: info, ls, tree, cat, stats, spec, detect, view, serve, bench
* `change`: the commands that change a place, make and verify reference sets, and maintain OCDBT databases
"""
