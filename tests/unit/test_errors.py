"""The error family: prefixes, places, pickling, and what they are besides."""

from __future__ import annotations

import pickle
import traceback

import pytest

from fsstore import errors

CLASSES = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_value_error_and_survives_pickling(kind):
    """Code that catches `ValueError` catches all; errors cross processes whole."""
    error = kind("what went wrong")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, ValueError)
    assert isinstance(again, kind)
    assert error.__reduce__()[0] is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_place_goes_before_the_message_and_after_the_code(kind):
    """`within` keeps class, cause and code."""
    error = kind("inner")
    error.__cause__ = OSError("why")
    located = error.within("Error reading x")
    assert isinstance(located, kind)
    assert str(located).startswith(kind.prefix + "Error reading x: inner")
    assert isinstance(located.__cause__, OSError)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_codec_nearest_to_the_damage_is_named(kind):
    """`blame` appends the first culprit it is told, also before a place is put in front, and pickles keep it."""
    error = kind("inner")
    error.blame('codec "gzip"')
    located = pickle.loads(pickle.dumps(error)).within("Error reading x")
    located.blame('codec "sharding_indexed"')
    assert located.message == 'Error reading x: inner; in codec "gzip"'


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
    assert isinstance(kind.__new__(kind, "what went wrong"), kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_traceback_prints_the_class_itself(kind):
    """An error is of the class that was raised, also for what prints it and for what counts errors by class."""
    error = kind("what went wrong")
    assert type(error) is kind
    assert type(error.within("here")) is type(pickle.loads(pickle.dumps(error))) is kind
    shown = f"fsstore.errors.{kind.__name__}: {kind.prefix}what went wrong\n"
    assert traceback.format_exception_only(error) == [shown]
    assert repr(error) == f"{kind.__name__}('what went wrong')"


class PlugInError(errors.NotFoundError):
    """An error of somebody else's."""


def test_errors_of_plug_ins_print_their_own_name():
    """A class of somebody else's stays what it is, also in another process."""
    error = PlugInError("gone")
    assert type(error) is PlugInError
    assert type(pickle.loads(pickle.dumps(error))) is PlugInError
    assert traceback.format_exception_only(error)[0].endswith("PlugInError: NOT_FOUND: gone\n")
