"""The page of troubleshooting is made of the messages that the library gives, and each of them has a cause and a cure."""

from __future__ import annotations

import pytest

from docs.troubleshooting import CURES, PAGE, kind_of, messages, page


def test_the_page_is_what_the_program_writes():
    """`python docs/troubleshooting.py` has been run since messages or cures changed."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("said", [said for _, said in messages()])
def test_every_message_has_a_cure(said):
    """Whoever sees a message finds it on the page."""
    assert kind_of(said) is not None


def test_every_cure_has_a_message():
    """No kind is made up, and a message that nobody can see is none."""
    assert {kind_of(said) for _, said in messages()} == set(CURES)
    assert kind_of("what nobody says") is None
