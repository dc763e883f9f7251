"""Words that people mean: what an error says of a name that is none, such as an attribute or a keyword."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Awaited", "close_names", "meant"]


def meant(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a word that is close to a known one, else nothing.

    >>> meant("chunk", ["chunks", "codec"])
    "; did you mean 'chunks'?"
    """
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def close_names(word: str, *known: Iterable[str]) -> list[str]:
    """Return the name that is closest to a word, if any is close; of short names, one letter may differ.

    >>> close_names("s4", ["s3", "gcs"]), close_names("frob", ["file"])
    (['s3'], [])
    """
    names = sorted({name for each in known for name in each})
    return get_close_matches(word, names, n=1, cutoff=0.6 if len(word) > 2 else 0.5)


class Awaited:
    """An object with a result to come: names that only the result has are refused in words that say so."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse a name that a future lacks."""
        kind = type(self).__name__
        if name.startswith("_"):
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(
            f"{kind!r} has no attribute {name!r}; await it or call .result() first, and ask what comes",
            name=name,
            obj=self,
        )

    def __getitem__(self, key: object) -> NoReturn:
        """Refuse: the result may be indexed."""
        raise TypeError(f"{type(self).__name__!r} cannot be indexed; await it or call .result() first")
