"""Images in several resolutions: `open_multiscale` and what it returns.

`description` reads and writes what the attributes of a group say of such an image, without I/O; `multiscale` opens the
levels; `picture` shows them in notebooks.
"""
