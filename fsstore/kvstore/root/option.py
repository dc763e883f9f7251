"""How the members and resources of cloud roots become options of obstore and of fsspec filesystems.

Credentials come from the environment, the profile files and the metadata services of the cloud, as the libraries
find them.  Given ones (`storage_options`) stay in memory: see `secret.guard`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.engine.fault import translate
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.values.json_value import Fields, Json, obj, one_of

__all__ = [
    "Library",
    "azure_options",
    "azure_store",
    "choose_engine",
    "concurrency_from",
    "gcs_options",
    "gcs_store",
    "s3_options",
    "s3_store",
    "take_engine",
    "take_options",
]

Library = Literal["fsstore", "obstore", "fsspec"]
Make = Callable[[dict[str, Any]], Any]


def take_engine(fields: Fields, *names: Library) -> dict[str, Json]:
    """Take `engine`: which client library to use.  Left out, the first of those below that can."""
    engine = fields.take("engine", one_of(*names, "obstore", "fsspec"))
    return {"engine": engine} if engine else {}


def take_options(fields: Fields) -> dict[str, Json]:
    """Take `storage_options`: options of the fsspec filesystem, which then is the engine."""
    options = fields.take("storage_options", obj, default={})
    return {"storage_options": guard(options)} if options else {}


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
    if wish is None and possible and not members.get("storage_options") and find_spec("obstore") is not None:
        return "obstore" if _obstore_works() else "fsspec"
    return "fsspec"


_obstore_process: int | None = None


def _obstore_works() -> bool:
    """Return whether obstore's threads are of this process: they are started once, and stay behind at a fork."""
    global _obstore_process  # noqa: PLW0603  # the library keeps its threads as such too
    _obstore_process = _obstore_process or os.getpid()
    return _obstore_process == os.getpid()


def concurrency_from(resources: Mapping[str, Any], name: str) -> int | None:
    """Return how many requests may run at once, or None where the resource leaves it open."""
    threads = getattr(resources.get(name), "threads", None)
    return int(threads) if threads else None


def _credentials(resources: Mapping[str, Any]) -> Mapping[str, Any]:
    given = resources.get("aws_credentials") or {}
    kinds = ("default", "anonymous", "environment", "imds", "ecs", "profile")
    if given.get("type", "default") not in kinds:
        raise StoreError(f"Failed to parse AWS credentials spec: expected one of: {', '.join(kinds)}")
    return dict(given)


def s3_options(members: Mapping[str, Json], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of s3fs."""
    credentials = _credentials(resources)
    options: dict[str, Any] = {"anon": credentials.get("type") == "anonymous"}
    if "profile" in credentials:
        options["profile"] = credentials["profile"]
    if members.get("endpoint"):
        options["endpoint_url"] = reveal(members["endpoint"])
    if members.get("aws_region"):
        options["client_kwargs"] = {"region_name": members["aws_region"]}
    if members.get("requester_pays"):
        options["requester_pays"] = True
    if not members.get("endpoint") and not members.get("aws_region"):
        options["cache_regions"] = True
    return {**options, **reveal(members.get("storage_options", {}))}


def s3_store(bucket: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Make:
    """Return a maker of obstore's `S3Store`."""
    credentials = _credentials(resources)
    config: dict[str, Any] = {}
    if members.get("endpoint"):
        config["endpoint"] = reveal(members["endpoint"])
    region = members.get("aws_region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    config["region"] = region or "us-east-1"
    if members.get("requester_pays"):
        config["request_payer"] = True
    if credentials.get("type") == "anonymous":
        config["skip_signature"] = True
    elif "AWS_ACCESS_KEY_ID" not in os.environ or "profile" in credentials:
        provider = _profile_provider(credentials.get("profile"))
        config |= {"credential_provider": provider} if provider is not None else {}

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import S3Store

        return S3Store(bucket, **config, **common)

    return make


def gcs_options(members: Mapping[str, Json], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of gcsfs."""
    project = (resources.get("gcs_user_project") or {}).get("project_id")
    options: dict[str, Any] = {"requester_pays": project} if project else {}
    return {**options, **reveal(members.get("storage_options", {}))}


def gcs_store(bucket: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Make:
    """Return a maker of obstore's `GCSStore`; without credentials requests are anonymous."""
    del members
    project = (resources.get("gcs_user_project") or {}).get("project_id")

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import GCSStore

        if project:
            common["client_options"]["default_headers"] = {"x-goog-user-project": project}
        anonymous = {} if _has_gcs_credentials() else {"skip_signature": True}
        return GCSStore(bucket, **anonymous, **common)

    return make


def _has_gcs_credentials() -> bool:
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
    default = Path.home() / ".config/gcloud/application_default_credentials.json"
    return any(name in os.environ for name in names) or default.exists() or "GCE_METADATA_HOST" in os.environ


def azure_options(members: Mapping[str, Json], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of adlfs."""
    del resources
    options = {"account_name": members["account_name"]} if members.get("account_name") else {}
    return {**options, **reveal(members.get("storage_options", {}))}


def azure_store(container: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Make:
    """Return a maker of obstore's `AzureStore`."""
    del resources
    config = {name: reveal(members[name]) for name in ("account_name", "endpoint") if members.get(name)}

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import AzureStore

        return AzureStore(container, **config, **common)

    return make


def _profile_provider(profile: str | None) -> Any:
    """Return a provider of the credentials in the profile files, which obstore does not read by itself."""
    if find_spec("botocore") is None:
        return None
    import botocore.session

    try:
        found = botocore.session.Session(profile=profile).get_credentials()
    except Exception as error:  # noqa: BLE001  # there is no such profile, or the files are malformed
        found = translate(error).within("Cannot find AWS credentials")
    if isinstance(found, StoreError):
        raise found
    if found is None:
        return None

    def provide() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        expiry = getattr(found, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expiry,
        }

    return provide
