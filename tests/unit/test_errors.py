"""The error family: prefixes, places, pickling, and what they are besides."""

from __future__ import annotations

import pickle

import pytest

from fsstore import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_value_error_and_survives_pickling(kind):
    """Code that catches `ValueError` catches all; errors cross processes whole."""
    error = kind("what went wrong")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, ValueError)
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_place_goes_before_the_message_and_after_the_code(kind):
    """`within` keeps class, cause and code."""
    error = kind("inner")
    error.__cause__ = OSError("why")
    located = error.within("Error reading x")
    assert type(located) is kind
    assert str(located).startswith(kind.prefix + "Error reading x: inner")
    assert isinstance(located.__cause__, OSError)


def test_builtin_families_are_joined():
    """Programs that know nothing of fsstore can catch the built-in classes."""
    assert issubclass(errors.NotFoundError, FileNotFoundError)
    assert issubclass(errors.AlreadyExistsError, FileExistsError)
    assert issubclass(errors.DeadlineExceededError, TimeoutError)
    assert issubclass(errors.PermissionDeniedError, PermissionError)
    assert issubclass(errors.UnimplementedError, NotImplementedError)
    assert issubclass(errors.OutOfRangeIndexError, IndexError)


def test_places_apply_to_every_problem():
    """A JSON error with several problems locates each."""
    error = errors.JsonError(["one", "two"]).within("in x")
    assert error.problems == ("in x: one", "in x: two")


def test_url_errors_point_at_the_culprit():
    """The URL is shown with carets below the component."""
    error = errors.UrlError("bad scheme", "file:///a|foo:", 9, 4)
    assert str(error).splitlines() == ["bad scheme", "  file:///a|foo:", "           ^^^^"]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_made_by_its_own_new(kind):
    """Libraries that rebuild exceptions from their parts call `__new__` by name."""
    assert type(kind.__new__(kind, "what went wrong")) is kind
