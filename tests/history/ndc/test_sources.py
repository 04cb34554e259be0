"""Events count only if they come from a cluster of their namespace, regardless of their version."""

import msgspec
import pytest

from fairlead.api.errors import NotFound
from fairlead.api.namespaces import Namespace
from fairlead.history.messages.ndc import Outcome, ReplicatedProgress
from fairlead.history.ndc.sources import NotShared
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, batch_of
from tests.history.shard_world import NAMESPACE
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"
OF_A_AND_B = msgspec.structs.replace(GLOBAL_NAMESPACE, clusters=("a", "b"))


async def written(name: str) -> Cluster:
    """A cluster that has written a workflow, as it believes in a namespace of all clusters."""
    source = Cluster(name)
    await source.start()
    await source.set_version({"a": 1, "b": 2, "c": 3}[name])
    await source.host.begin(FLOW)
    return source


@pytest.mark.parametrize("namespace", [NAMESPACE, OF_A_AND_B], ids=["local", "of others"])
@pytest.mark.parametrize("operation", ["ApplyBatch", "RestoreBatch"])
@on_virtual_time
async def test_events_of_a_cluster_outside_the_namespace_are_refused(namespace: Namespace, operation: str) -> None:
    source, target = await written("c"), Cluster("b", namespace=namespace)
    await target.start()
    (row,), _ = await source.rows()
    with pytest.raises(NotShared, match="cluster 'c' sends events of namespace"):
        await target.host.call(operation, FLOW, batch_of("c", row))
    assert target.current(FLOW) is None
    # A lie about the source is the sender's affair: the receiver sets it to the cluster that it has pulled from.
    if namespace is OF_A_AND_B and operation == "ApplyBatch":
        assert (await target.apply(batch_of("a", row))).outcome == Outcome.CREATED


@on_virtual_time
async def test_progress_of_a_cluster_outside_the_namespace_is_refused() -> None:
    target = Cluster("b", namespace=OF_A_AND_B)
    await target.start()
    progress = ReplicatedProgress(OF_A_AND_B.id, FLOW, "run", "c", ((1, 3),), ())
    with pytest.raises(NotShared):
        await target.host.call("ApplyProgress", FLOW, progress)


@on_virtual_time
async def test_events_are_applied_as_soon_as_their_cluster_is_added() -> None:
    source, target = await written("c"), Cluster("b", namespace=OF_A_AND_B)
    await target.start()
    (row,), _ = await source.rows()
    with pytest.raises(NotShared):
        await target.apply(batch_of("c", row))
    await target.host.namespaces.change(
        OF_A_AND_B.id, lambda now: msgspec.structs.replace(now, clusters=("a", "b", "c"))
    )
    assert (await target.apply(batch_of("c", row))).outcome == Outcome.CREATED
    with pytest.raises(NotFound):
        await target.host.namespaces.read_id("another")
