"""Section `cluster` of the static configuration: this cluster's name and the remote clusters."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.core.versions import ClusterVersions, InvalidClusters
from fairlead.settings.dynamic.kinds import Int, Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section
from fairlead.settings.static.security import read_secret_file
from fairlead.settings.static.store import parse_file_name

# Defaults of the cluster's name, its initial failover version and the failover version increment.
NAME_DEFAULT = "active"
INITIAL_VERSION_DEFAULT = 1
INCREMENT_DEFAULT = 10

INCREMENT_MAX = 1_000_000
REMOTES_MAX = 64
PATTERNS_MAX = 1_000
NAME_CHARACTERS_MAX = 100
# The name must be valid as a folder name in the journal, and as a part of keys in the store.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RemoteClusterConfig:
    """Another cluster: its initial failover version and its frontend's address."""

    initial_version: int
    address: str


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Validated configuration of this cluster and of the remote clusters with which it shares global namespaces."""

    name: str = NAME_DEFAULT
    initial_version: int = INITIAL_VERSION_DEFAULT
    increment: int = INCREMENT_DEFAULT
    remotes: Mapping[str, RemoteClusterConfig] = field(default_factory=dict)
    # API keys that authenticate this cluster to other clusters, by HOST:PORT or HOST.
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Patterns of HOST:PORT, HOST or CIDR to which operators may connect this cluster; empty: any.
    allowed_addresses: tuple[str, ...] = ()
    # The files that have the keys.
    key_files: tuple[Path, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Raise if two clusters have the same name or the same initial version."""
        if self.name in self.remotes:
            raise InvalidClusters(
                f"cluster {self.name!r} is this cluster and also a remote one: leave it out of the remotes"
            )
        _ = self.versions

    @property
    def versions(self) -> ClusterVersions:
        """Failover versions of the configured clusters; more clusters may be added while the server runs."""
        remotes = {name: remote.initial_version for name, remote in self.remotes.items()}
        return ClusterVersions(self.increment, {self.name: self.initial_version, **remotes})


def parse_cluster_name(raw: Plain) -> str:
    """Read the name of a cluster."""
    if not isinstance(raw, str) or len(raw) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(raw):
        raise InvalidValue(
            "is not a valid cluster name: use letters, digits, '.', '_' and '-', beginning with a letter or a digit, "
            f"{NAME_CHARACTERS_MAX} at most"
        )
    return raw


def read_cluster(cluster: Section, parse_address: Callable[[Plain], str], folder: Path) -> ClusterConfig | None:
    """Read the section `cluster`; None if it is missing or has errors, which are all reported."""
    keys = cluster.section("apiKeyFiles")
    files: list[Path] = []
    api_keys = {address.lower(): keys.value(address, _key_reader(folder, files), "") for address in keys.names()}
    keys.close()
    allowed: tuple[str, ...] = cluster.value("allowedAddresses", _parse_patterns, tuple[str, ...]())
    name = cluster.value("name", parse_cluster_name, "")
    increment = cluster.value("increment", Int(2, INCREMENT_MAX).parse, INCREMENT_DEFAULT)
    parse_version = Int(1, INCREMENT_MAX).parse
    initial = cluster.value("initialVersion", parse_version, INITIAL_VERSION_DEFAULT)
    if initial >= increment:
        _complain_of_version(cluster, initial, increment)
    owners = {initial: name or "this cluster"}
    remotes: dict[str, RemoteClusterConfig] = {}
    places: dict[str, str] = {}
    read = cluster.section("remotes")
    for remote_name, remote in read.sections():
        version = remote.value("initialVersion", parse_version, 0)
        address = remote.value("address", parse_address, "")
        remote.close()
        if problem := _name_problem(remote_name, name, len(remotes)):
            read.complain_of(remote_name, problem)
            continue
        if missing := [key for key in ("initialVersion", "address") if not remote.given(key)]:
            read.complain_of(remote_name, f" has no {' and no '.join(missing)}: give both")
        if version >= increment:
            _complain_of_version(remote, version, increment)
        elif version and version in owners:
            remote.complain_of(
                "initialVersion", f": {version} is also the version of {owners[version]}: make them differ"
            )
        if address and address in places:
            remote.complain_of(
                "address", f": {address} is also the address of {places[address]}: give each cluster its own"
            )
        owners.setdefault(version, remote_name)
        places.setdefault(address, remote_name)
        remotes[remote_name] = RemoteClusterConfig(version, address)
    if cluster.is_given and not cluster.given("name"):
        cluster.complain_here("has no name: give the name by which the other clusters know this one")
    cluster.close()
    if not cluster.is_given or cluster.has_problems:
        return None
    return ClusterConfig(name, initial, increment, remotes, api_keys, allowed, tuple(files))


def _parse_patterns(raw: Plain) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > PATTERNS_MAX:
        raise InvalidValue(f"is not a list of at most {PATTERNS_MAX} addresses")
    if wrong := [each for each in raw if not isinstance(each, str) or not each]:
        raise InvalidValue(f"has {wrong[0]!r}: give HOST:PORT, HOST, *.DOMAIN or a network like 10.0.0.0/8")
    return tuple(str(each).lower() for each in raw)


def _key_reader(folder: Path, files: list[Path]) -> Callable[[Plain], str]:
    """Make a function that reads the key of a file, and adds the file to `files`."""

    def read(raw: Plain) -> str:
        file = folder / parse_file_name(raw)
        files.append(file)
        return read_secret_file(file)

    return read


def _complain_of_version(section: Section, version: int, increment: int) -> None:
    """Report an initial version that is not below the increment, at the one of the two keys that the file has."""
    key = "initialVersion" if section.given("initialVersion") else "increment"
    section.complain_of(key, f": the initial version {version} must be below the increment, which is {increment}")


def _name_problem(remote_name: str, name: str, before: int) -> str:
    try:
        parse_cluster_name(remote_name)
    except InvalidValue as wrong:
        return f" {wrong}"
    if remote_name == name:
        return " is the name of this cluster itself: leave it out"
    if before >= REMOTES_MAX:
        return f" is above the limit of {REMOTES_MAX} remote clusters: remove some"
    return ""
