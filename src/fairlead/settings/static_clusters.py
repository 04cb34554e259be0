"""The part of the static configuration that names this cluster, and the others that it shares namespaces with."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.core.versions import ClusterVersions, InvalidClusters
from fairlead.settings.kinds import Int, Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.section import Section

# What a cluster is called, and how its versions count, where nobody says it.
NAME_DEFAULT = "active"
INITIAL_VERSION_DEFAULT = 1
INCREMENT_DEFAULT = 10

INCREMENT_MAX = 1_000_000
REMOTES_MAX = 64
NAME_CHARACTERS_MAX = 100
# The name is that of a folder of the journal, and a part of keys in the store.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RemoteClusterConfig:
    """Another cluster: which versions are its own, and where its frontend is."""

    initial_version: int
    address: str


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Who this cluster is among those that share namespaces. What is here has been checked."""

    name: str = NAME_DEFAULT
    initial_version: int = INITIAL_VERSION_DEFAULT
    increment: int = INCREMENT_DEFAULT
    remotes: Mapping[str, RemoteClusterConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and initial versions that don't tell the clusters apart."""
        if self.name in self.remotes:
            raise InvalidClusters(f"cluster {self.name!r} is this one, and one of the remote ones: leave it out there")
        _ = self.versions

    @property
    def versions(self) -> ClusterVersions:
        """Whose each version is, as far as it is configured; clusters may be added while the server runs."""
        remotes = {name: remote.initial_version for name, remote in self.remotes.items()}
        return ClusterVersions(self.increment, {self.name: self.initial_version, **remotes})


def parse_cluster_name(raw: Plain) -> str:
    """Read the name of a cluster."""
    if not isinstance(raw, str) or len(raw) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(raw):
        raise InvalidValue(
            "is no name of a cluster: use letters, digits, '.', '_' and '-', beginning with a letter or a digit, "
            f"{NAME_CHARACTERS_MAX} at most"
        )
    return raw


def read_cluster(cluster: Section, parse_address: Callable[[Plain], str]) -> ClusterConfig | None:
    """What the section `cluster` says; None where there is none. All that is wrong is complained of."""
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
            remote.complain_of("initialVersion", f": {version} is that of {owners[version]}, too: make them differ")
        if address and address in places:
            remote.complain_of("address", f": {address} is that of {places[address]}, too: each has its own")
        owners.setdefault(version, remote_name)
        places.setdefault(address, remote_name)
        remotes[remote_name] = RemoteClusterConfig(version, address)
    if cluster.is_given and not cluster.given("name"):
        cluster.complain_here("has no name: the other clusters know this one by it")
    cluster.close()
    if not cluster.is_given or cluster.has_problems:
        # What is wrong is told, and nothing is made of it.
        return None
    return ClusterConfig(name, initial, increment, remotes)


def _complain_of_version(section: Section, version: int, increment: int) -> None:
    """Where one of them is only the default, the other is what was given."""
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
        return f" is one more than {REMOTES_MAX} remote clusters: that is the most"
    return ""
