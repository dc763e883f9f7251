"""Adapters for other libraries.  Each module is imported only by those who use that library."""
