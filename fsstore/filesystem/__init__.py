"""The reverse direction: stores and arrays of fsstore shown to others as fsspec filesystems."""
