"""Writes to buckets whose answer was lost: carried out or not, alone or beside other writers."""

import time

import pytest

from fsstore.errors import OutcomeUnknownError, UnavailableError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Write
from fsstore.kvstore.engine.contract import MARK, Standing, TrackedWrite
from tests.fault.order_search import NEVER, Event, has_order
from tests.fault.test_http_faults import answer, bucket_store, credentials, run  # noqa: F401  # fixtures


def methods(server, name="k"):
    """Return the methods of requests for an object, in order."""
    return [method for method, path, _ in server.log if path.endswith(f"/{name}")]


def lose(server, *, made, then=None, method="PUT"):
    """Lose the answer to the next request for `k`: carried out or not, and followed by what others do."""

    def act(handler, path, body):
        if made and method == "PUT":
            server.keep(path, body, handler.headers)
        elif made:
            server.objects.pop("/d/k", None)
        if then is not None:
            then()
        handler.reply(500)

    server.fail("/d" if method == "POST" else "/k", act, method=method)


def theirs(server):
    """Store an object as another writer does now."""
    server.put("d/k", b"theirs", modified=time.time())


def test_a_write_is_one_request_and_has_a_mark(bucket_store, object_server):  # noqa: F811
    """Where nothing is lost, nothing is asked, whatever the condition; no two marks are the same."""
    marks = set()
    for condition in (UNKNOWN, NO_VALUE, UNKNOWN):
        object_server.objects.clear()
        run(bucket_store.write("warm", b"1"))  # the first condition asks the server whether it checks them
        run(bucket_store.write("warm", b"1", NO_VALUE)) if condition else None
        object_server.log.clear()
        run(bucket_store.write("k", b"new", condition))
        assert methods(object_server) == ["PUT"]
        marks |= {value for name, value in object_server.metadata["/d/k"].items() if name.lower().endswith(MARK)}
    assert len(marks) == 3


def test_a_write_that_was_carried_out_is_not_sent_again(bucket_store, object_server):  # noqa: F811
    """Its mark tells."""
    lose(object_server, made=True)
    stamp = run(bucket_store.write("k", b"new"))
    assert methods(object_server)[:1] == ["PUT"]
    assert methods(object_server).count("PUT") == 1
    assert stamp.generation == run(bucket_store.read("k")).generation


@pytest.mark.parametrize("before", ["nothing", "old", "own"])
def test_a_write_that_was_not_carried_out_is_sent_again(bucket_store, object_server, before):  # noqa: F811
    """There is nothing, or what was there before: long ago, or written by this process a moment ago."""
    if before == "old":
        object_server.put("d/k", b"old")
    if before == "own":
        run(bucket_store.write("k", b"own"))
    object_server.log.clear()
    lose(object_server, made=False)
    run(bucket_store.write("k", b"new"))
    assert methods(object_server).count("PUT") == 2
    assert object_server.objects["/d/k"] == b"new"


@pytest.mark.parametrize("made", [True, False])
def test_a_write_beside_another_writer_is_unknown(bucket_store, object_server, made):  # noqa: F811
    """What came on top, or before: the one must not be undone, and the two cannot be told apart."""
    lose(object_server, made=made, then=lambda: theirs(object_server))
    with pytest.raises(OutcomeUnknownError, match="/k"):
        run(bucket_store.write("k", b"new"))
    assert object_server.objects["/d/k"] == b"theirs"
    assert methods(object_server).count("PUT") == 1


def test_a_write_between_others_of_this_process_is_unknown(bucket_store, object_server):  # noqa: F811
    """One that was under way at the same time may have come before or after."""

    def other():
        with TrackedWrite(Write("k", b""), "k") as tracked:
            headers = {f"x-amz-meta-{MARK}": tracked.mark}
            object_server.keep("/d/k", b"other", headers)

    lose(object_server, made=True, then=other)
    with pytest.raises(OutcomeUnknownError):
        run(bucket_store.write("k", b"new"))
    assert object_server.objects["/d/k"] == b"other"


@pytest.mark.parametrize("made", [True, False])
def test_a_deletion_is_sent_again_only_if_it_was_not_carried_out(bucket_store, object_server, made):  # noqa: F811
    """An object that is gone needs no second deletion, and one that stayed does."""
    object_server.put("d/k", b"old")
    for method in ("DELETE", "POST"):
        lose(object_server, made=made, method=method)
    run(bucket_store.write("k", None))
    assert "/d/k" not in object_server.objects
    assert sum(method in ("DELETE", "POST") for method, *_ in object_server.log) == (1 if made else 2)


def test_a_deletion_does_not_take_what_came_after_it(bucket_store, object_server):  # noqa: F811
    """Another writer's new object stays."""
    object_server.put("d/k", b"old")
    for method in ("DELETE", "POST"):
        lose(object_server, made=True, then=lambda: theirs(object_server), method=method)
    with pytest.raises(OutcomeUnknownError):
        run(bucket_store.write("k", None))
    assert object_server.objects["/d/k"] == b"theirs"


def test_a_refusal_by_what_was_there_before_is_certain(bucket_store, object_server):  # noqa: F811
    """A creation whose first answer was lost is refused for good where an older object stands."""
    object_server.put("d/k", b"old")
    lose(object_server, made=False)
    assert run(bucket_store.write("k", b"new", NO_VALUE)).generation == UNKNOWN
    assert object_server.objects["/d/k"] == b"old"


def test_a_storage_that_stays_away_is_unavailable(bucket_store, object_server):  # noqa: F811
    """The tries end, and so do the looks."""
    object_server.fail("/k", *[answer(500)] * 50)
    with pytest.raises(UnavailableError, match="/k"):
        run(bucket_store.write("k", b"new"))


def test_what_is_known_of_an_object_after_a_loss():
    """Marks of this process are judged by their order, all others by their time."""
    first = TrackedWrite(Write("k", b""), "k")
    with first, TrackedWrite(Write("k", b""), "k") as second:
        assert second.after_loss(Standing(b"g", second.mark, 0.0)).generation == b"g"
        with pytest.raises(OutcomeUnknownError):
            second.after_loss(Standing(b"g", first.mark, 0.0))  # under way when the second began
        with pytest.raises(OutcomeUnknownError):
            first.after_loss(Standing(b"g", second.mark, 0.0))
        for mark in (None, "0123456789abcdef-1", "other", first.mark.replace("-", "")):
            assert first.after_loss(Standing(b"g", mark, time.time() - 60)) is None
            with pytest.raises(OutcomeUnknownError):
                first.after_loss(Standing(b"g", mark, time.time()))
        assert first.after_loss(None) is None
    with TrackedWrite(Write("k", b""), "k") as third:
        assert third.after_loss(Standing(b"g", first.mark, time.time())) is None  # ended before the third began
    with TrackedWrite(Write("k", b"", b"f"), "k") as swap:
        assert swap.after_loss(Standing(b"g", second.mark, time.time())).generation == UNKNOWN  # refused for certain
        assert swap.after_loss(Standing(b"f", "other", time.time())) is None  # its condition holds
        with pytest.raises(OutcomeUnknownError):
            swap.after_loss(None)


def test_a_key_that_this_process_deletes_meanwhile():
    """Nothing under a key says that a write did not come, unless the process itself deletes at the same time."""
    with TrackedWrite(Write("k", None), "k") as deletion, TrackedWrite(Write("k", b""), "k") as write:
        assert deletion.after_loss(None).generation == NO_VALUE
        with TrackedWrite(Write("k", b""), "other") as elsewhere:
            assert elsewhere.after_loss(None) is None
        with pytest.raises(OutcomeUnknownError):
            write.after_loss(None)
    with TrackedWrite(Write("k", b""), "k") as write:
        assert write.after_loss(None) is None
        with TrackedWrite(Write("k", None), "k"):
            pass
        with pytest.raises(OutcomeUnknownError):
            write.after_loss(None)


def test_the_search_for_an_order_finds_what_has_none():
    """A value that comes back, a swap of what is gone, a refusal without a reason; unknown outcomes may help."""
    first, other = Event(0, 10, "write", None, b"a"), Event(2, 3, "write", None, b"b")

    def reads(*values):
        return [Event(4 + 2 * n, 5 + 2 * n, "read", value, None) for n, value in enumerate(values)]

    assert has_order([first, other, *reads(b"b", b"a")])
    assert not has_order([first, other, *reads(b"a", b"b", b"a")])
    assert not has_order([first, other, *reads(b"b", b"a", b"b")])
    assert not has_order([other, Event(4, 5, "swap", b"a", b"c")])
    assert has_order([other, Event(0, NEVER, "write", None, b"a"), Event(4, 5, "swap", b"a", b"c")])
    assert not has_order([other, Event(4, 5, "refused", b"b", b"c")])
    assert has_order([first, other, Event(4, 5, "refused", b"b", b"c")])
