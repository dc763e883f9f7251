"""Measurements of fsstore beside other libraries.  Nothing here is part of the package or of the test suite."""
