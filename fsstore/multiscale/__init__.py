"""Images in several resolutions, opened level by level.

`description` reads and writes what the attributes of a group say of such an image, without I/O; `multiscale` opens the
levels.
"""
