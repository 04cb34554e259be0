"""The ring: hosts with their shares, partitions and shards, and the partitions that a leaving host would move."""

from collections import Counter
from typing import Final

from msgspec import Struct
from temporalio.api.workflowservice.v1 import ListNamespacesRequest, ListNamespacesResponse

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console.context import Context
from fairlead.console.queues import trusted_client
from fairlead.console.view import Parameters, View
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.core.routing import GradualChange, HashRing, Router
from fairlead.history.client import partition_of
from fairlead.membership.ring import RingResponse
from fairlead.rpc import RpcStatus

# Stored partitions that are placed; more are cut, and the page says so.
PLACED_MAX: Final = 50_000
# Partitions that are named as moving, and namespaces whose names are read for them.
MOVES_SHOWN: Final = 200
NAMESPACES_MAX: Final = 1_000


class RingParameters(Parameters, frozen=True, kw_only=True):
    """`leaving` is the host whose departure is computed."""

    leaving: str = ""


class HostRow(Struct, frozen=True, kw_only=True):
    """A host of the ring. `gains` are the partitions and shards that it would get from the leaving host."""

    name: str
    share: float
    partitions: int
    shards: int
    loaded: int | None = None
    sees: str = "the same ring"
    is_well: bool = True
    gains: int = 0
    gains_shards: int = 0


class Move(Struct, frozen=True, kw_only=True):
    """A partition of a task queue that would move. `namespace` is that of its clients, or the id of an unknown one."""

    namespace: str
    task_queue: str
    type: str
    partition: int
    from_host: str
    to_host: str


class Ring(Struct, frozen=True, kw_only=True):
    """The data of the view."""

    hosts: list[HostRow]
    batch_size: str
    partitions: int
    shards: int
    is_cut: bool
    leaving: str = ""
    moves: int = 0
    moves_shards: int = 0
    # The first `MOVES_SHOWN` partitions that move, by task queue; and all shards that move, by their new host.
    moving: list[Move] = []
    moving_shards: dict[str, list[int]] = {}


async def load(context: Context, asked: RingParameters) -> Ring:
    """Read the ring of all hosts."""
    await context.require(HOST_METHODS["matching.Describe"])
    answers = await context.operators.rings()
    names = tuple(sorted(answers))
    stored = await trusted_client(context).list_task_queues()
    placed = [Partition(queue, number) for queue, numbers in stored.items() for number in numbers]
    is_cut = len(placed) > PLACED_MAX
    placed = placed[:PLACED_MAX]
    shards = [partition_of(number) for number in range(context.backend.shards)]
    batch_size = next((one.spread_batch_size for one in answers.values() if isinstance(one, RingResponse)), 0)
    router = Router(HashRing(names), batch_size)
    owners = [router.route(one, context.now_s) for one in placed]
    shard_owners = [router.route(one, context.now_s) for one in shards]
    gains: Counter[str] = Counter()
    gains_shards: Counter[str] = Counter()
    moving: list[Move] = []
    moving_shards: dict[str, list[int]] = {}
    is_leaving = asked.leaving in names and len(names) > 1
    if is_leaving:
        rest = Router(router.ring.without_host(asked.leaving), batch_size)
        # With spread routing, partitions of other hosts may move as well.
        moved = _moved(rest, placed, owners, context.now_s)
        moved_shards = _moved(rest, shards, shard_owners, context.now_s)
        gains.update(new for _, _, new in moved)
        gains_shards.update(new for _, _, new in moved_shards)
        moving = await _named(context, placed, moved)
        for number, _, new in moved_shards:
            moving_shards.setdefault(new, []).append(number)
    shares = router.ring.shares()
    partitions_of, shards_of = Counter(owners), Counter(shard_owners)
    rows = []
    for name in names:
        loaded, sees, is_well = _seen(names, answers[name])
        rows.append(
            HostRow(
                name=name,
                share=shares[name],
                partitions=partitions_of[name],
                shards=shards_of[name],
                loaded=loaded,
                sees=sees,
                is_well=is_well,
                gains=gains[name],
                gains_shards=gains_shards[name],
            )
        )
    return Ring(
        hosts=rows,
        batch_size=_batch_size(batch_size),
        partitions=len(placed),
        shards=len(shards),
        is_cut=is_cut,
        leaving=asked.leaving if is_leaving else "",
        moves=gains.total(),
        moves_shards=gains_shards.total(),
        moving=moving,
        moving_shards=moving_shards,
    )


def _moved(rest: Router, placed: list[Partition], owners: list[str], now_s: float) -> list[tuple[int, str, str]]:
    """The partitions that move, by their place in the list, with the old and the new owner."""
    after = (rest.route(one, now_s) for one in placed)
    return [(place, old, new) for place, (new, old) in enumerate(zip(after, owners, strict=True)) if new != old]


async def _named(context: Context, placed: list[Partition], moved: list[tuple[int, str, str]]) -> list[Move]:
    """The partitions that move as people know them, sorted by task queue."""
    names = await _namespace_names(context)
    found = [
        Move(
            namespace=names.get(placed[place].task_queue.namespace_id, placed[place].task_queue.namespace_id),
            task_queue=placed[place].task_queue.name,
            type=placed[place].task_queue.type.name.lower(),
            partition=placed[place].number,
            from_host=old,
            to_host=new,
        )
        for place, old, new in moved
    ]
    return sorted(found, key=lambda one: (one.namespace, one.task_queue, one.type, one.partition))[:MOVES_SHOWN]


async def _namespace_names(context: Context) -> dict[str, str]:
    """The names of namespaces by their ids; the ids stay for viewers who may not list namespaces."""
    try:
        found = await context.call(
            "ListNamespaces", ListNamespacesRequest(page_size=NAMESPACES_MAX), ListNamespacesResponse
        )
    except RpcStatus:
        return {}
    return {one.namespace_info.id: one.namespace_info.name for one in found.namespaces}


def _seen(names: tuple[str, ...], answer: RingResponse | FairleadError) -> tuple[int | None, str, bool]:
    if isinstance(answer, FairleadError):
        return None, f"no answer: {answer}", False
    missing = sorted(set(names) - set(answer.hosts))
    more = sorted(set(answer.hosts) - set(names))
    parts = [f"does not see {', '.join(missing)}"] * bool(missing) + [f"also sees {', '.join(more)}"] * bool(more)
    return answer.loaded, "; ".join(parts) or "the same ring", not parts


def _batch_size(size: int | GradualChange[int]) -> str:
    if isinstance(size, GradualChange):
        return f"{size.old}, becoming {size.new}"
    return f"spread routing, batches of {size}" if size else "basic routing"


VIEW: Final = View(
    path="ring",
    title="Ring",
    nav="Ring",
    access=HOST_METHODS["matching.Describe"],
    key="r",
    parameters=RingParameters,
    load=load,
    template="ring.html",
)
