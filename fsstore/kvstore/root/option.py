"""How the members and resources of cloud roots become options of obstore and of fsspec filesystems.

Credentials come from the environment, the profile files and the metadata services of the cloud, as the libraries
find them.  Given ones (`storage_options`) stay in memory: see `secret.guard`.  S3 has a module of its own, `aws`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.client.credential import CredentialSource, function_name
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.values.json_value import Fields, Json, obj, one_of, quote

__all__ = [
    "IDLE",
    "Library",
    "Reach",
    "azure_reach",
    "check_options",
    "choose_engine",
    "concurrency_from",
    "gcs_reach",
    "take_engine",
    "take_options",
    "with_storage_options",
]

Library = Literal["fsstore", "obstore", "fsspec"]
Make = Callable[[dict[str, Any]], Any]

IDLE = frozenset(
    (
        *(
            "asynchronous",
            "loop",
            "skip_instance_cache",
            "use_listings_cache",
            "listings_expiry_time",
            "max_paths",
        ),
        *(
            "batch_size",
            "default_block_size",
            "default_cache_type",
            "default_fill_cache",
            "cache_regions",
            "use_ssl",
        ),
    )
)
"""Options about what fsstore does by itself, or not at all."""
_OF_EVERY_CLASS = IDLE | {"storage_options", "protocol", "fo", "target_protocol", "target_options"}


@dataclass(frozen=True, slots=True)
class Reach:
    """How a bucket is reached, in the words of both client libraries."""

    store: Make
    """Makes obstore's store."""
    options: Callable[[], dict[str, Any]]
    """Returns those of the fsspec filesystem."""
    for_both: bool = True
    """Whether obstore can do all that is asked for."""
    endpoint: str = ""
    source: CredentialSource | None = None
    """Where credentials come from, if they are looked after here."""


def take_engine(fields: Fields, *names: Library) -> dict[str, Json]:
    """Take `engine`: which client library to use.  Left out, the first of those below that can."""
    engine = fields.take("engine", one_of(*names, "obstore", "fsspec"))
    return {"engine": engine} if engine else {}


def take_options(fields: Fields) -> dict[str, Json]:
    """Take `storage_options`, in the words of the fsspec filesystem."""
    options = fields.take("storage_options", obj, default={})
    return with_storage_options({}, options)


def with_storage_options(members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
    """Return members with `storage_options` added to those there are."""
    merged = {**reveal(members.get("storage_options", {})), **options}
    if merged.get("credential_provider"):
        merged["credential_provider"] = function_name(merged["credential_provider"])
    return {**members, "storage_options": guard(merged)} if merged else dict(members)


def check_options(scheme: str, options: Mapping[str, Any], own: frozenset[str] = frozenset()) -> None:
    """Refuse options that nobody knows, by name; `own` are known to fsstore, others to the fsspec filesystem."""
    unknown = [name for name in options if name not in own | _OF_EVERY_CLASS]
    if not unknown:
        return
    from fsstore.kvstore.root.open_engine import filesystem_class

    known = set(own)
    for cls in filesystem_class(scheme).__mro__:
        known |= set(inspect.signature(cls.__init__).parameters)
    for name in unknown:
        if name == "credential_provider" and scheme in _RENEWED:
            raise StoreError(f"A function gives credentials for s3:// only; {_RENEWED[scheme]}")
        if name not in known:
            near = get_close_matches(name, known | IDLE, n=1)
            hint = (
                f"did you mean {quote(near[0])}?" if near else f"its options are those of {_CLASSES[scheme]}"
            )
            raise StoreError(f"There is no storage option {quote(name)} for {scheme}://; {hint}")


_RENEWED = {
    "gs": "for gs:// the client renews those of an account or a machine: token='/path/to/account.json' or 'cloud'",
    "abfs": "for abfs:// the client renews those of an application: tenant_id, client_id and client_secret",
}
"""The option that takes the place of a function, for credentials that expire."""

_CLASSES = {
    "http": "fsspec's HTTPFileSystem",
    "s3": "s3fs.S3FileSystem",
    "gs": "gcsfs.GCSFileSystem",
    "abfs": "adlfs.AzureBlobFileSystem",
}


def choose_engine(members: Mapping[str, Json], *, possible: bool) -> Library:
    """Return which client library serves a root."""
    wish = members.get("engine")
    if wish == "obstore":
        if not possible:
            raise UnimplementedError("obstore cannot serve this URL or these options; leave `engine` out")
        if find_spec("obstore") is None:
            raise UnimplementedError("obstore is not installed: pip install 'fsstore[fast]'")
        if not _obstore_works():
            raise UnimplementedError(
                "obstore cannot be used in a process that was forked off after its first use: start processes with"
                " the method spawn or forkserver, or leave `engine` out"
            )
        return "obstore"
    if wish is None and possible and find_spec("obstore") is not None:
        return "obstore" if _obstore_works() else "fsspec"
    return "fsspec"


@cache
def _obstore_process() -> int:
    """Return the process that used obstore first, here or before a fork: the library's threads stay there."""
    return os.getpid()


def _obstore_works() -> bool:
    """Return whether obstore's threads are of this process."""
    return _obstore_process() == os.getpid()


def concurrency_from(resources: Mapping[str, Any], name: str) -> int | None:
    """Return how many requests may run at once, or None where the resource leaves it open."""
    threads = getattr(resources.get(name), "threads", None)
    return int(threads) if threads else None


def gcs_reach(bucket: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Reach:
    """Return how a bucket of Google's cloud is reached; through obstore without credentials requests are anonymous."""
    project = (resources.get("gcs_user_project") or {}).get("project_id")
    given: Mapping[str, Any] = reveal(members.get("storage_options", {}))
    check_options("gs", given)
    asks_none = given.get("token") == "anon"

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import GCSStore

        if project:
            common["client_options"]["default_headers"] = {"x-goog-user-project": project}
        anonymous = {"skip_signature": True} if asks_none or not _has_gcs_credentials() else {}
        return GCSStore(bucket, **anonymous, **common)

    def options() -> dict[str, Any]:
        return {**({"requester_pays": project} if project else {}), **given}

    return Reach(make, options, (asks_none and set(given) <= IDLE | {"token"}) or not given)


def _has_gcs_credentials() -> bool:
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
    default = Path.home() / ".config/gcloud/application_default_credentials.json"
    return any(name in os.environ for name in names) or default.exists() or "GCE_METADATA_HOST" in os.environ


_AZURE = frozenset(("account_name", "account_key", "sas_token", "anon"))


def azure_reach(container: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Reach:
    """Return how a container of Azure is reached."""
    del resources
    given: Mapping[str, Any] = reveal(members.get("storage_options", {}))
    check_options("abfs", given)
    account = {"account_name": members["account_name"]} if members.get("account_name") else {}

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import AzureStore

        config: dict[str, Any] = {
            name: reveal(members[name]) for name in ("account_name", "endpoint") if members.get(name)
        }
        config |= {
            name: given[name] for name in ("account_name", "account_key", "sas_token") if given.get(name)
        }
        return AzureStore(
            container, **config, **({"skip_signature": True} if given.get("anon") else {}), **common
        )

    endpoint = str(reveal(members.get("endpoint", "")))
    return Reach(make, lambda: {**account, **given}, set(given) <= IDLE | _AZURE, endpoint)
