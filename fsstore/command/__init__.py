"""The command line: each command parses arguments, calls one door of the library, and prints what that says.

* `change`: commands that move and change: copy, verify, delete, attrs
* `combining`: commands for datasets of many files: refs combine, append, replace, drop
* `completion`: completions for bash, zsh and fish, made from the table of commands
* `look`: commands that show pages and times: view, bench
* `main`: the command line: its commands as one table, and what becomes of errors
* `output`: what a command prints: text in which names cannot steer the terminal, JSON, and columns
* `places`: from the arguments of a command to open arrays, groups and stores
* `plot`: numbers as characters: an image in shades for two dimensions, a line for one, bars for a histogram
* `selection`: selections as text, in the syntax of Python: 5, 5:9, ..., 0, [1, 2, 3], ::2
* `sets`: commands for reference sets and OCDBT databases
* `show`: commands that look: info, ls, tree, cat, stats, spec, detect
* `table`: all commands: their arguments, what they are for, an example, and the function that does them
* `usage`: the error for arguments that make no sense
"""
