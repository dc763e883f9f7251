"""What messages, causes, specs and pickles show of URLs, headers and the words of others: nothing that may be a secret."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

import fsstore as ts
from fsstore.errors import DataLossError, JsonError, NotFoundError, StoreError, UrlError
from fsstore.kvstore.engine.contract import ForeignError, located, translate
from fsstore.redaction import redact, shown_query, spoken, without_secrets

URLS = [
    *(f"https://h.example/a?{query}" for query in ("token=S3CR", "jwt=S3CR", "code=S3CR", "hmac=S3CR", "k=S3CR", "S3CR", "%74oken=S3CR", "a=1;x=S3CR", "a=1&b=S3CR", "version=S3CR")),
    "https://me:S3CR@h.example/a", "https://S3CR@h.example/a", "ftp://me:S3CR%40@h.example/a", "s3://k:S3CR@bucket/a",
    "simplecache::https://h.example/a?t=S3CR", "simplecache::https://me:S3CR@h.example/a", "zip://m::https://h.example/a.zip?sig=S3CR",
]  # fmt: skip


@pytest.mark.parametrize("kind", [StoreError, NotFoundError, DataLossError, JsonError, UrlError])
@pytest.mark.parametrize("url", URLS)
def test_no_error_shows_the_user_or_the_query_of_a_url(kind, url):
    """Whoever writes the message, what comes out of text, fields, pickle and traceback is the rest of the URL."""
    error = kind(f'Cannot open "{url}|zip:"').within(f"Error reading {url}")
    if kind is UrlError:
        error = UrlError(f"bad {url}", url + "|bogus:", len(url) + 1, 5)
        assert str(error).splitlines()[2].index("^") == str(error).splitlines()[1].index("bogus")
    try:
        raise error
    except StoreError as raised:
        shown = "".join(traceback.format_exception(raised))
    shown += str(error) + repr(error) + repr(vars(error)) + repr(error.args) + repr(pickle.dumps(error))
    assert "S3CR" not in shown
    assert "://" in shown


@pytest.mark.parametrize("url", URLS)
def test_specs_show_none_either(url):
    """Text, JSON and pickles of a spec hold what is harmless; the store is opened with all of it."""
    spec = ts.KvStore.Spec(
        {
            "driver": "reference",
            "base": "memory://r",
            "rewrite": {"a": url},
            "allow": [],
            "templates": {"t": url},
            "target": url,
        }
    )
    made = [spec]
    if url.startswith("http"):
        made.append(ts.KvStore.Spec(url))
    if "://h." in url or "@h." in url:
        made.append(ts.KvStore.Spec({"driver": "s3", "bucket": "abc", "endpoint": url}))
    for each in made:
        assert "S3CR" not in str(each) + repr(each) + json.dumps(each.to_json()) + repr(pickle.dumps(each))
    with pytest.raises(StoreError) as error:
        ts.Spec(url + "|bogus:")
    assert "S3CR" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("name", ["Authorization", "X-Jwt", "Api", "X-Access", "Cookie", "X-Hmac"])
def test_no_header_is_shown_unless_it_is_known_to_be_harmless(name):
    """A header of any name may be a credential."""
    spec = ts.KvStore.Spec({"driver": "http", "base_url": "http://h", "headers": [f"{name}: S3CR", "Accept: x/y"]})
    assert "S3CR" not in str(spec) + json.dumps(spec.to_json()) + repr(pickle.dumps(spec))
    assert json.loads(json.dumps(spec.to_json()))["headers"] == ["Accept: x/y"]
    spec = ts.KvStore.Spec(
        {
            "driver": "fsspec",
            "url": "http://h/",
            "storage_options": {"headers": {name: "S3CR"}, "params": {"k": "S3CR"}},
        }
    )
    assert "S3CR" not in str(spec) + json.dumps(spec.to_json())


class OddError(Exception):
    """An exception that holds a request."""

    def __init__(self) -> None:
        super().__init__(
            "GET https://me:S3CR@h/a?k=S3CR failed {'X-Jwt': 'S3CR', 'Api': 'S3CR'} Authorization: Bearer S3CR"
        )
        self.request = {"headers": {"Authorization": "S3CR"}}


def test_a_foreign_exception_is_a_cause_by_name_only():
    """Its class and its harmless words stay, with the traceback; the exception, which holds requests, does not."""
    try:
        raise OddError
    except OddError as error:
        failure = located(error, "reading", "https://me:S3CR@h/a?k=S3CR")
    with pytest.raises(StoreError) as raised:
        raise failure
    assert isinstance(raised.value.__cause__, ForeignError)
    assert raised.value.__context__ is None
    shown = "".join(traceback.format_exception(raised.value)) + repr(vars(raised.value.__cause__))
    assert "S3CR" not in shown.replace("S3CR@h/a?k=S3CR", "")  # the line of this test
    assert "OddError" in shown
    ours = NotFoundError("x")
    assert translate(ours) is ours


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "<Error><Code>AccessDenied</Code><Message>Access Denied</Message><Key>S3CR</Key></Error>",
            "AccessDenied: Access Denied",
        ),
        ('{"error": "no such key", "headers": {"Api": "S3CR"}}', "no such key"),
        ("denied /a?S3CR {'Api': 'S3CR'}", "denied /a"),
        ("<html><title>Not Found</title>S3CR", "Not Found"),
        ("Api: S3CR", "Api"),
        ("", ""),
    ],
)
def test_of_the_body_of_a_failure_what_is_meant_for_people_is_shown(body, said):
    """Servers repeat requests in their answers."""
    assert spoken(body) == said


def test_texts_without_secrets_stay():
    """Places on this machine, harmless queries and plain text are not touched."""
    for text in ("file:///a?b", "memory://a?b=c", "https://h/a?version=3", "a? b", "user@host", "s3://b/k@v2"):
        assert without_secrets(text) == text
    assert redact("a plain failure: 5 of 6") == "a plain failure: 5 of 6"
    assert shown_query("")
