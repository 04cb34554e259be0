"""The `cluster` section of the static configuration: all its errors are reported together, before the server starts."""

from pathlib import Path

import pytest

from fairlead.core.versions import InvalidClusters
from fairlead.settings import InvalidSettings
from fairlead.settings.static.config import DEFAULTS, ClusterConfig, RemoteClusterConfig, StaticConfig, load_config

GOOD = """
cluster:
  name: a
  initialVersion: 1
  increment: 100
  remotes:
    b: {initialVersion: 2, address: 10.0.0.2:7233}
    C_1: {initial_version: 3, address: "[::1]:7233"}
"""


def load(tmp_path: Path, text: str) -> StaticConfig:
    file = tmp_path / "fairlead.yaml"
    file.write_text(text)
    return load_config(file, {})


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InvalidSettings) as raised:
        load(tmp_path, text)
    return [str(problem) for problem in raised.value.problems]


def test_a_cluster_and_its_remote_clusters_are_read(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.cluster == ClusterConfig(
        "a",
        1,
        100,
        {"b": RemoteClusterConfig(2, "10.0.0.2:7233"), "C_1": RemoteClusterConfig(3, "[::1]:7233")},
    )
    assert config.cluster_name == "a"
    assert config.cluster.versions.next_version(to="C_1", current=2) == 3
    assert config.cluster.versions.next_version(to="a", current=2) == 101


@pytest.mark.parametrize("text", ["", "cluster:\n"])
def test_a_configuration_without_the_section_has_a_single_cluster(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert config.cluster is None
    assert config.cluster_name == DEFAULTS.cluster_name == "active"


def test_all_problems_are_reported_together_with_their_lines(tmp_path: Path) -> None:
    text = """
cluster:
  name: a
  initialVersion: 12
  remotes:
    a: {initialVersion: 2, address: 127.0.0.1:7234}
    b: {initialVersion: 13, address: 127.0.0.1:0}
    c: {initialVersion: 3, address: 127.0.0.1:7235}
    d: {initialVersion: 3, address: 127.0.0.1:7235}
    "x y": {initialVersion: 4, address: 127.0.0.1:7236}
    e: {version: 5}
  remote: {}
"""
    assert problems(tmp_path, text) == [
        "line 4: cluster.initialVersion: the initial version 12 must be below the increment, which is 10",
        "line 6: cluster.remotes.a is the name of this cluster itself: leave it out",
        (
            "line 7: cluster.remotes.b.address: '127.0.0.1:0' is not an address that other hosts can call: give "
            "HOST:PORT "
            "as they reach it"
        ),
        "line 7: cluster.remotes.b.initialVersion: the initial version 13 must be below the increment, which is 10",
        "line 9: cluster.remotes.d.initialVersion: 3 is also the version of c: make them differ",
        "line 9: cluster.remotes.d.address: 127.0.0.1:7235 is also the address of c: give each cluster its own",
        (
            "line 10: cluster.remotes.x y is not a valid cluster name: use letters, digits, '.', '_' and '-', "
            "beginning "
            "with a letter or a digit, 100 at most"
        ),
        "line 11: cluster.remotes.e.version is unknown: did you mean initialVersion?",
        "line 11: cluster.remotes.e has no initialVersion and no address: give both",
        "line 12: cluster.remote is unknown: did you mean remotes?",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "cluster: {initialVersion: 2}",
            "cluster has no name: give the name by which the other clusters know this one",
        ),
        ("cluster: {name: a, initialVersion: 0}", "cluster.initialVersion: 0"),
        ("cluster: {name: a, initialVersion: x}", "cluster.initialVersion: 'x'"),
        ("cluster: {name: a, increment: 1}", "cluster.increment: 1"),
        ("cluster: {name: a, initialVersion: 5, increment: 5}", "the initial version 5 must be below the increment"),
        ("cluster: {name: ../a}", "is not a valid cluster name"),
        ("cluster: {name: a, remotes: {b: 7}}", "cluster.remotes.b is not a mapping"),
        (
            "cluster: {name: a, remotes: {b: {initialVersion: 1, address: 'x:1'}}}",
            "cluster.remotes.b.initialVersion: 1 is also the version of a: make them differ",
        ),
    ],
)
def test_each_mistake_has_a_clear_error(tmp_path: Path, text: str, complaint: str) -> None:
    assert any(complaint in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


def test_a_configuration_object_is_validated_too() -> None:
    with pytest.raises(InvalidClusters, match="is this cluster"):
        ClusterConfig("a", remotes={"a": RemoteClusterConfig(2, "h:1")})
    with pytest.raises(InvalidClusters, match="both have initial version 1"):
        ClusterConfig("a", remotes={"b": RemoteClusterConfig(1, "h:1")})
