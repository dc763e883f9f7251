"""The format at a place, and the arrays below it, told from names and first bytes.

`probe` makes one step of detection, and describes a place where no array was found; `hierarchy` finds the arrays and
groups of a tree by their metadata.
"""
