"""Formats: stored documents to one description of a stored array, and back.  No format does any input or output."""
