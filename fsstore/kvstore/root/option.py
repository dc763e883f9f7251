"""Members and resources of cloud roots as options of obstore and of fsspec filesystems.

Credentials come from the environment, the profile files and the metadata services of the cloud, as the libraries find
them.  Given ones (`storage_options`) stay in memory: see `secret.guard`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fsstore.errors import PermissionDeniedError, StoreError, UnimplementedError
from fsstore.kvstore.client.credential import (
    Credentials,
    CredentialSource,
    NamedSource,
    endpoint_of,
    function_name,
    obstore_provider,
)
from fsstore.kvstore.engine.contract import translate
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.runtime import execution, fork
from fsstore.values.json_value import Fields, Json, obj, quote

Library = Literal["fsstore", "obstore", "fsspec"]
Make = Callable[[dict[str, Any]], Any]

IDLE = frozenset(
    (
        *("asynchronous", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"),
        *("batch_size", "default_block_size", "default_cache_type", "default_fill_cache", "cache_regions", "use_ssl"),
    )
)
"""Options for matters that fsstore handles itself, or not at all."""
OF_REQUESTS = frozenset(
    (
        *("headers", "params", "cookies", "auth", "allow_redirects", "max_redirects", "compress"),
        *("timeout", "ssl", "ssl_context", "verify_ssl", "fingerprint", "server_hostname"),
        *("proxy", "proxy_auth", "proxy_headers", "skip_auto_headers", "trace_request_ctx"),
        *("read_bufsize", "max_line_size", "max_field_size"),
    )
)
"""Options that the HTTP filesystem passes to each request of aiohttp."""
_OF_EVERY_CLASS = IDLE | {"storage_options", "protocol", "fo", "target_protocol", "target_options"}


@dataclass(frozen=True, slots=True)
class Reach:
    """Access to a bucket, in the terms of both client libraries."""

    store: Make
    """Makes obstore's store."""
    options: Callable[[], dict[str, Any]]
    """Returns the options of the fsspec filesystem."""
    for_both: bool = True
    """Whether obstore can do everything asked for."""
    endpoint: str = ""
    source: CredentialSource | None = None
    """The source of credentials, if fsstore renews them."""


def take_options(fields: Fields) -> dict[str, Json]:
    """Take `storage_options`, the options of the fsspec filesystem."""
    options = fields.take("storage_options", obj, default={})
    return with_storage_options({}, options)


def with_storage_options(members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
    """Return members with `storage_options` merged in."""
    merged = {**reveal(members.get("storage_options", {})), **options}
    if merged.get("credential_provider"):
        merged["credential_provider"] = function_name(merged["credential_provider"])
    return {**members, "storage_options": guard(merged)} if merged else dict(members)


def check_options(scheme: str, options: Mapping[str, Any], own: frozenset[str] = frozenset()) -> None:
    """Raise an error for unknown options, by name; fsstore knows `own`, the fsspec filesystem the others."""
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
            cls = filesystem_class(scheme)
            its = _CLASSES.get(scheme, f"{cls.__module__}.{cls.__qualname__}")
            hint = f"did you mean {quote(near[0])}?" if near else f"its options are those of {its}"
            raise StoreError(f"There is no storage option {quote(name)} for {scheme}://; {hint}")


def check_chain(url: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a filesystem in a chain would accept and ignore."""
    links = [link.partition("://")[0] if "://" in link else link for link in url.split("::")]
    first = {name: value for name, value in options.items() if name not in links}
    for number, link in enumerate(links):
        if link in _DEAF:
            nested = options.get(link)
            own = nested if isinstance(nested, Mapping) else {}
            known = OF_REQUESTS if link in ("http", "https") else frozenset[str]()
            check_options(link, {**own, **first} if number == 0 else own, known)


_DEAF = frozenset(
    (
        *("file", "local", "memory", "ftp", "gs", "gcs", "abfs", "abfss", "az"),
        *("zip", "tar", "libarchive", "simplecache", "filecache", "blockcache", "http", "https"),
    )
)
"""Filesystems that accept any option, at least until the first request; others pass it to a client, or refuse it."""


_RENEWED = {
    "gs": "for gs:// the client renews those of an account or a machine: token='/path/to/account.json' or 'cloud'",
    "abfs": "for abfs:// the client renews those of an application: tenant_id, client_id and client_secret",
}
"""The options that replace a function, for credentials that expire."""

_CLASSES = {
    "http": "fsspec's HTTPFileSystem",
    "s3": "s3fs.S3FileSystem",
    "gs": "gcsfs.GCSFileSystem",
    "abfs": "adlfs.AzureBlobFileSystem",
}


def choose_engine(members: Mapping[str, Json], *, possible: bool) -> Library:
    """Return the client library for a root."""
    requested = members.get("engine")
    if requested == "obstore":
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
    if requested is None and possible and find_spec("obstore") is not None:
        return "obstore" if _obstore_works() else "fsspec"
    return "fsspec"


@cache
def _obstore_process() -> int:
    """Return the process that used obstore first, here or before a fork: the library's threads stay there."""
    return os.getpid()


def _obstore_works() -> bool:
    return _obstore_process() == os.getpid()


def concurrency_from(resources: Mapping[str, Any], name: str) -> int | None:
    """Return the number of requests at once, or None if the resource leaves it open."""
    threads = getattr(resources.get(name), "threads", None)
    return int(threads) if threads else None


def gcs_reach(bucket: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Reach:
    """Return the access to a bucket of Google's cloud; without credentials, obstore makes anonymous requests."""
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
    """Return the access to a container of Azure."""
    del resources
    given: Mapping[str, Any] = reveal(members.get("storage_options", {}))
    check_options("abfs", given)
    account = {"account_name": members["account_name"]} if members.get("account_name") else {}

    def make(common: dict[str, Any]) -> Any:
        from obstore.store import AzureStore

        config: dict[str, Any] = {
            name: reveal(members[name]) for name in ("account_name", "endpoint") if members.get(name)
        }
        config |= {name: given[name] for name in ("account_name", "account_key", "sas_token") if given.get(name)}
        return AzureStore(container, **config, **({"skip_signature": True} if given.get("anon") else {}), **common)

    endpoint = str(reveal(members.get("endpoint", "")))
    return Reach(make, lambda: {**account, **given}, set(given) <= IDLE | _AZURE, endpoint)


# The settings of S3: from the caller, the environment and the profile files.

_BOTH = frozenset(
    (
        *("anon", "key", "username", "secret", "password", "token", "profile", "credential_provider"),
        *("endpoint_url", "requester_pays", "client_kwargs"),
    )
)
"""Options that have an equivalent in both libraries; only s3fs knows the others."""
_CLIENT = frozenset(("endpoint_url", "region_name"))
_KINDS = ("default", "anonymous", "environment", "imds", "ecs", "profile", "provider")


@dataclass(frozen=True)
class S3Access:
    """Access to a bucket of S3.  `source` gives credentials; without one, requests are not signed."""

    endpoint: str
    region: str
    source: CredentialSource | None
    requester_pays: bool
    options: Mapping[str, Any]
    """The caller's options."""

    @cached_property
    def for_both(self) -> bool:
        """Whether obstore supports all options."""
        client = self.options.get("client_kwargs") or {}
        return set(self.options) <= _BOTH | IDLE and set(client) <= _CLIENT

    @property
    def renewable(self) -> CredentialSource | None:
        """The source, unless its credentials never change."""
        return None if isinstance(self.source, _Fixed) else self.source

    def s3fs_options(self) -> dict[str, Any]:
        """Return options of s3fs."""
        rest = {name: value for name, value in self.options.items() if name not in _BOTH}
        client = {**(self.options.get("client_kwargs") or {})}
        client.pop("endpoint_url", None)
        if self.region:
            client["region_name"] = self.region
        out: dict[str, Any] = {**rest, "anon": self.source is None, "requester_pays": self.requester_pays}
        if self.endpoint:
            out["endpoint_url"] = self.endpoint
        if self.source is not None and "session" not in rest and find_spec("aiobotocore") is not None:
            out["session"] = _session(self.source)
        if client:
            out["client_kwargs"] = client
        if not self.endpoint and not self.region:
            out.setdefault("cache_regions", True)
        return out

    def obstore_maker(self, bucket: str) -> Callable[[dict[str, Any]], Any]:
        """Return a maker of obstore's `S3Store`."""
        config: dict[str, Any] = {"region": self.region or "us-east-1"}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        if self.requester_pays:
            config["request_payer"] = True
        if self.source is None:
            config["skip_signature"] = True
        else:
            config["credential_provider"] = obstore_provider(self.source)

        def make(common: dict[str, Any]) -> Any:
            from obstore.store import S3Store

            return S3Store(bucket, **config, **common)

        return make


def s3_access(members: Mapping[str, Json], resources: Mapping[str, Any]) -> S3Access:
    """Return the access to the bucket of a spec."""
    options: Mapping[str, Any] = reveal(members.get("storage_options", {}))
    check_options("s3", options, _BOTH)
    client = options.get("client_kwargs") or {}
    profile = _Profile(options.get("profile") or _given(resources).get("profile"))

    region = client.get("region_name") or members.get("aws_region") or os.environ.get("AWS_REGION")
    return S3Access(
        endpoint=endpoint_of(members, options) or profile.setting("endpoint_url"),
        region=str(region or os.environ.get("AWS_DEFAULT_REGION") or profile.setting("region")),
        source=_source(options, resources, profile),
        requester_pays=bool(options.get("requester_pays") or members.get("requester_pays")),
        options=options,
    )


def s3_reach(bucket: str, members: Mapping[str, Json], resources: Mapping[str, Any]) -> Reach:
    """Return the access to a bucket of S3."""
    access = s3_access(members, resources)
    return Reach(access.obstore_maker(bucket), access.s3fs_options, access.for_both, access.endpoint, access.renewable)


def _given(resources: Mapping[str, Any]) -> Mapping[str, Any]:
    given: Mapping[str, Any] = resources.get("aws_credentials") or {}
    if given.get("type", "default") not in _KINDS:
        raise StoreError(f"Failed to parse AWS credentials spec: expected one of: {', '.join(_KINDS)}")
    return given


def _source(options: Mapping[str, Any], resources: Mapping[str, Any], profile: _Profile) -> CredentialSource | None:
    """Return the source of credentials, or None for unsigned requests."""
    key, secret = (
        options.get("key") or options.get("username"), options.get("secret") or options.get("password")
    )  # fmt: skip
    given = _given(resources)
    if options.get("anon"):
        return None
    if key or secret:
        return _Fixed(Credentials(str(key), str(secret), options.get("token")))
    if options.get("credential_provider"):
        return NamedSource(function_name(options["credential_provider"]))
    if options.get("profile"):
        return profile
    if given.get("type") == "anonymous":
        return None
    if given.get("type") == "provider" or "provider" in given:
        return NamedSource(function_name(given.get("provider", "")))
    if "profile" in given:
        return profile
    if "AWS_ACCESS_KEY_ID" in os.environ:
        key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        return _Fixed(Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN")))
    if given.get("type") == "environment":
        raise _missing()
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on"):
        return None
    return profile


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Credentials given as options."""

    credentials: Credentials

    @property
    def due(self) -> bool:
        """False: given credentials are never renewed."""
        return False

    def fresh(self) -> Credentials:
        """Return the credentials."""
        return self.credentials

    def refused(self, used: Credentials) -> None:
        """Do nothing: there are no other credentials."""


class _Profile:
    """The credentials of a profile, or the machine's own, found as by Amazon's tools."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._lock = fork.lock()
        self._found: Any = None
        self._known: Credentials | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Profile) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def _session(self) -> Any:
        import botocore.session

        return botocore.session.Session(profile=self.name)

    def setting(self, name: str) -> str:
        """Return a setting of the profile, or an empty text."""
        at = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
        known = self.name is not None or at.exists()
        if not known or find_spec("botocore") is None:
            return ""
        failure = None
        try:
            return str(self._session.get_scoped_config().get(name) or "")
        except Exception as error:  # noqa: BLE001  # no such profile, or malformed files
            failure = translate(error).within("Cannot find AWS credentials")
        raise failure

    @property
    def due(self) -> bool:
        """Whether credentials have not been looked up, or are about to expire."""
        if self._found is None:
            return True
        from botocore.credentials import RefreshableCredentials

        return isinstance(self._found, RefreshableCredentials) and self._found.refresh_needed()

    def refused(self, used: Credentials) -> None:
        """Look credentials up again, unless newer ones are known."""
        with self._lock:
            if self._known == used:
                self._found = self._known = None
                self.__dict__.pop("_session", None)

    def fresh(self) -> Credentials:
        """Return the credentials, or raise an error that tells how to give some."""
        with self._lock:
            if self._found is None:
                self._found = self._look()
            frozen = self._found.get_frozen_credentials()
            self._known = Credentials(frozen.access_key, frozen.secret_key, frozen.token)
            return self._known

    def _look(self) -> Any:
        if find_spec("botocore") is None:
            raise _missing()
        failure: StoreError | None = None
        try:
            found = self._session.get_credentials()
        except Exception as error:  # noqa: BLE001  # no such profile, or malformed files
            found, failure = None, translate(error).within("Cannot find AWS credentials")
        if found is None:
            raise failure or _missing(self.name)
        return found


def _missing(profile: str | None = None) -> PermissionDeniedError:
    where = f" in the profile {quote(profile)}" if profile else ""
    return PermissionDeniedError(
        f"There are no credentials for S3{where}: give storage_options={{'key': …, 'secret': …}}, set"
        " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ask without any, as public data allow, with"
        " storage_options={'anon': True}"
    )


def _session(source: CredentialSource) -> Any:
    """Return a session of aiobotocore whose clients ask the source before each request."""
    from aiobotocore.credentials import AioCredentials
    from aiobotocore.session import AioSession

    class SourceCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore is not followed by the type checker
        """The credentials of a source."""

        async def get_frozen_credentials(self) -> Any:
            """Return the present credentials of the source."""
            from botocore.credentials import ReadOnlyCredentials

            known = await execution.offload(source.fresh) if source.due else source.fresh()
            return ReadOnlyCredentials(known.key, known.secret, known.token)

    class SourceSession(AioSession):  # type: ignore[misc]  # as above
        """A session equal to others of the same source, so that S3 may copy from one to the other."""

        def __init__(self) -> None:
            super().__init__()
            self.source = source
            self._credentials = SourceCredentials("source", "source")

        def __eq__(self, other: object) -> bool:
            return isinstance(other, AioSession) and getattr(other, "source", None) == source

        def __hash__(self) -> int:
            return hash(source)

    return SourceSession()
