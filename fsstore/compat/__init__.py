"""fsstore in the place of another library, for programs that import that one.

`tensorstore` is TensorStore's.
"""
