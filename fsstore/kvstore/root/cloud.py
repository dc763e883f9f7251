"""The kinds of roots behind storage libraries: `fsspec` (any protocol), `s3`, `gcs`, `http`, `abfs`.

JSON members are TensorStore's, and `storage_options` for settings that only the fsspec filesystem knows.  obstore
serves cloud roots if it is installed, otherwise the fsspec filesystem: same answers, same tests.  `fsspec_scheme` makes
every protocol of fsspec a root URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fsstore.errors import JsonError, UnimplementedError, UrlError
from fsstore.kvstore.client.credential import RenewedEngine, with_checked_conditions
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import KvDriver, KvKind, KvOpening, RootKind, take_way
from fsstore.kvstore.engine.contract import Engine, Retry, retry_from, shared
from fsstore.kvstore.engine.driver import EngineDriver, guarded
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.kvstore.root.chain_url import join_chain
from fsstore.kvstore.root.option import (
    Reach,
    azure_reach,
    check_chain,
    choose_engine,
    concurrency_from,
    gcs_reach,
    s3_access,
    s3_reach,
    take_options,
    with_storage_options,
)
from fsstore.kvstore.root.web import HttpDriver, HttpKind, fsspec_engine, own_engine, root_of
from fsstore.values import registry
from fsstore.values.json_value import Fields, Json, boolean, dumps, quote, string
from fsstore.values.registry import decode_path, encode_path, reject_query


class S3Driver(EngineDriver):
    """A bucket of S3."""

    id: ClassVar[str] = "s3"


class GcsDriver(EngineDriver):
    """A bucket of Google Cloud Storage."""

    id: ClassVar[str] = "gcs"


class FsspecHttpDriver(HttpDriver):
    """A web server opened as `fsspec`, with options of the HTTP filesystem."""

    id: ClassVar[str] = "fsspec"


class AbfsDriver(EngineDriver):
    """A container of Azure Blob Storage."""

    id: ClassVar[str] = "abfs"


def _url(value: Any) -> Any:
    return guard(string(value))


@dataclass(frozen=True)
class FsspecKind(RootKind):
    """Any protocol of fsspec: `{"driver": "fsspec", "url": "abfs://container/", "storage_options": {}}`."""

    id: str = "fsspec"
    schemes: tuple[str, ...] = ()
    resources: tuple[str, ...] = ("range_coalescing", "disk_cache")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `url`, `storage_options`, `engine` and `single_writer`."""
        url = fields.require("url", _url)
        return {"url": url, **take_options(fields), **take_way(fields, self.id)}

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Return the members with `storage_options`."""
        return with_storage_options(members, options)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path, and the part before it as `url`."""
        host, _, path = rest.partition("/")
        return decode_path(path), {"url": guard(f"{scheme}://{host}/")}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL, unless options or a chain make it impossible."""
        url = str(members["url"])
        if members.get("single_writer"):
            raise UnimplementedError("fsspec URL syntax not supported with single_writer")
        if members.get("storage_options") or "://" not in url:
            raise UnimplementedError("fsspec URL syntax not supported with storage_options or a bare protocol")
        if "::" in url:
            return join_chain(url, path)
        scheme, _, rest = url.partition("://")
        host, slash, inner = rest.partition("/")
        return f"{scheme}://{host}{slash}{encode_path(decode_path(inner) + path, safe='@')}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver over the filesystem of the URL."""
        from fsstore.kvstore.root.open_engine import engine_for_url

        url, options = str(reveal(opening.members["url"])), reveal(opening.members.get("storage_options", {}))
        limits = limits_from(opening.resources)
        check_chain(url, options)
        if url.startswith(("http://", "https://")):
            base, _, query = url.partition("?")
            retry = retry_from(opening.resources, "")
            web = (
                fsspec_engine(query, {}, retry, None, options)
                if options or opening.members.get("engine")
                else own_engine(url, {}, retry, None)
            )
            return FsspecHttpDriver(web, root_of(base), members=opening.members, limits=limits)
        source = None
        if url.startswith(("s3://", "s3a://")) and "::" not in url:
            access = s3_access({"storage_options": options}, {})
            options, source = access.s3fs_options(), access.renewable
        engine, root = engine_for_url(url, options)
        engine = engine if source is None else RenewedEngine(engine, source)
        return guarded(EngineDriver(engine, root, members=opening.members, limits=limits), opening.members)


@dataclass(frozen=True)
class BucketKind(RootKind):
    """Roots that are a bucket (or container) and a path; the fields hold the differences between clouds."""

    id: str
    schemes: tuple[str, ...]
    resources: tuple[str, ...]
    bucket: str
    driver: type[EngineDriver]
    label: str
    reach: Callable[[str, Mapping[str, Json], Mapping[str, Any]], Reach]
    texts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    not_in_url: tuple[str, ...] = ()

    def _bucket(self, value: Any) -> str:
        name = string(value)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}[A-Za-z0-9]", name):
            shown = name.rpartition("@")[2]  # the part before may be a credential
            raise JsonError(f"Invalid {self.label} {self.bucket} name: {quote(shown)}")
        return name

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the cloud, `engine`, `storage_options` and `single_writer`."""
        members: dict[str, Json] = {}
        if self.bucket in fields:
            members[self.bucket] = fields.take(self.bucket, self._bucket)
        else:
            fields.problem(f"{quote(self.bucket)} must be specified")
        for name in self.texts:
            value = fields.take(name, string, default="")
            members |= {name: guard(value)} if value else {}
        for name in self.flags:
            members |= {name: True} if fields.take(name, boolean, default=False) else {}
        return {**members, **take_options(fields), **take_way(fields, self.id)}

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Return the members with `storage_options`."""
        return with_storage_options(members, options)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:  # the signature of the contract
        """Return the path and the bucket."""
        reject_query(rest)
        bucket, _, path = rest.partition("/")
        try:
            return decode_path(path), {self.bucket: self._bucket(bucket)}
        except JsonError as error:
            raise UrlError(str(error)) from None

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL, unless an endpoint or options make it impossible."""
        for name in (*self.not_in_url, "storage_options", "single_writer"):
            if members.get(name):
                raise UnimplementedError(f"{self.label} URL syntax not supported with explicit {name}")
        return f"{self.schemes[0]}://{members[self.bucket]}/{encode_path(path)}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver."""
        members = opening.members
        if members.get("host_header"):
            raise UnimplementedError("host_header is not supported")

        def choose() -> tuple[Engine, str]:
            return self._engine(members, opening.resources)

        limits = limits_from(opening.resources)
        return guarded(self.driver(*choose(), members=members, limits=limits, again=choose), members)

    def _engine(self, members: Mapping[str, Json], resources: Mapping[str, Any]) -> tuple[Engine, str]:
        """Return the engine, over obstore or the fsspec filesystem, and the root in it."""
        return self._reached(members, resources, self.reach(str(members[self.bucket]), members, resources))

    def _reached(self, members: Mapping[str, Json], resources: Mapping[str, Any], reach: Reach) -> tuple[Engine, str]:
        shown = f"{self.schemes[0]}://{members[self.bucket]}/"
        retry = retry_from(resources, f"{self.id}_request_retries")
        threads = concurrency_from(resources, f"{self.id}_request_concurrency")
        library = choose_engine(members, possible=reach.for_both)

        def make() -> tuple[Engine, str]:
            return self._made(library, shown, reach, retry=retry, threads=threads)

        given = _as_text(members, resources)
        return make() if given is None else shared((self.id, library, given, retry, threads), make)

    def _made(self, library: str, shown: str, reach: Reach, *, retry: Retry, threads: int | None) -> tuple[Engine, str]:
        if library == "obstore":
            from fsstore.kvstore.client.object_store import bucket_engine

            plain = reach.endpoint.startswith("http:")
            engine: Engine = bucket_engine(reach.store, shown, retry=retry, concurrency=threads, plain=plain)
            root = ""
        else:
            from fsstore.kvstore.root.open_engine import engine_for_url

            engine, root = engine_for_url(shown, reach.options(), retry=retry, concurrency=threads)
        return engine if reach.source is None else RenewedEngine(engine, reach.source), root


def _as_text(members: Mapping[str, Json], resources: Mapping[str, Any]) -> str | None:
    """Return the settings of a bucket as text; None if one of them is an object, such as a session of botocore."""
    plain = {name: value for name, value in resources.items() if isinstance(value, dict | str)}
    try:
        return dumps([{name: reveal(value) for name, value in members.items()}, plain])
    except TypeError:
        return None


@dataclass(frozen=True)
class S3Kind(BucketKind):
    """Buckets of S3, on Amazon's servers or on others, which may not check conditions (see `client.credential`)."""

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `use_conditional_write`, too; without it, the server is asked."""
        conditional = fields.take("use_conditional_write", boolean)
        members = super().members(fields)
        return members if conditional is None else {**members, "use_conditional_write": conditional}

    def _engine(self, members: Mapping[str, Json], resources: Mapping[str, Any]) -> tuple[Engine, str]:
        reach = self.reach(str(members[self.bucket]), members, resources)
        engine, root = self._reached(members, resources, reach)
        return with_checked_conditions(engine, reach.endpoint, members.get("use_conditional_write")), root


@dataclass(frozen=True)
class AzureKind(BucketKind):
    """Containers of Azure: a URL may also name the account, `abfs://container@account.dfs.core.windows.net/path`."""

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path, the container and the account, if the URL names one."""
        authority, slash, path = rest.partition("/")
        container, at, host = authority.partition("@")
        account = _AZURE_HOST.fullmatch(host)
        if at and account is None:
            raise UrlError(f"Invalid Azure host name: {quote(host)}")
        found, members = super().from_url(scheme, container + slash + path)
        return found, members | ({"account_name": account["account"]} if account else {})

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL, with the account if the spec has one."""
        account = members.get("account_name")
        url = super().to_url(path, {name: value for name, value in members.items() if name != "account_name"})
        container = f"://{members[self.bucket]}"
        return url.replace(container, f"{container}@{account}.dfs.core.windows.net", 1) if account else url


@dataclass(frozen=True)
class GrpcKind(BucketKind):
    """Google's buckets under the name of another transport: `gcs_grpc`, served like `gcs`.

    Members of these specs about the transport are ignored, and so are unknown ones, as in TensorStore.
    """

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of a bucket; drop all others."""
        members = super().members(fields)
        fields.rest()
        return members

    def _engine(self, members: Mapping[str, Json], resources: Mapping[str, Any]) -> tuple[Engine, str]:
        return GCS._engine(members, resources)


_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")

FSSPEC = FsspecKind()
HTTP = HttpKind()

S3 = S3Kind(
    "s3",
    ("s3",),
    ("aws_credentials", "s3_request_concurrency", "s3_request_retries", "range_coalescing", "disk_cache"),
    bucket="bucket",
    label="S3",
    driver=S3Driver,
    texts=("endpoint", "aws_region", "host_header"),
    flags=("requester_pays",),
    not_in_url=("endpoint",),
    reach=s3_reach,
)

GCS = BucketKind(
    "gcs",
    ("gs",),
    ("gcs_user_project", "gcs_request_concurrency", "gcs_request_retries", "range_coalescing", "disk_cache"),
    bucket="bucket",
    label="GCS",
    driver=GcsDriver,
    reach=gcs_reach,
)

GCS_GRPC = GrpcKind(
    "gcs_grpc",
    ("gcs_grpc",),
    ("gcs_user_project", "gcs_request_retries", "data_copy_concurrency", "range_coalescing", "disk_cache"),
    bucket="bucket",
    label="GCS",
    driver=GcsDriver,
    reach=gcs_reach,
)

ABFS = AzureKind(
    "abfs",
    ("abfs", "abfss", "az"),
    ("abfs_request_concurrency", "abfs_request_retries", "range_coalescing", "disk_cache"),
    bucket="container",
    label="Azure",
    driver=AbfsDriver,
    texts=("account_name", "endpoint"),
    not_in_url=("endpoint",),
    reach=azure_reach,
)


def fsspec_scheme(scheme: str) -> KvKind | None:
    """Return the kind of a root URL with a protocol of fsspec that has no other meaning in fsstore."""
    if scheme in registry.kvstores.names() or scheme in registry.drivers.names():
        return None
    from fsstore.kvstore.root.open_engine import knows

    return FSSPEC if scheme not in _OWN and knows(scheme) else None


_OWN = frozenset({"fsstore"})  # our own fsspec protocols, which are not kinds
