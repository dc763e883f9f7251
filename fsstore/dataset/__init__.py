"""Datasets: the arrays and groups below a place, as people list, open and change them.

* `listing`: list_arrays and tree: which arrays there are below a URL, without opening them
"""
