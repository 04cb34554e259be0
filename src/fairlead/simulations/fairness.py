"""`fairlead simulate fairness`: dispatches and waits of each key when one key floods a task queue."""

import random
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fairlead.core.fairness import LEVEL_ZERO, FairBacklog, Level, Share, WeightOverrides
from fairlead.core.fairness.measures import jain_index
from fairlead.report import Report, Table
from fairlead.simulations.command import simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOD = "flood"
KEYS_MAX = 50
BINS = 30
KEYS_DRAWN_MAX = 9
TASKS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arriving task: its key and weight, and the time."""

    share: Share
    at_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """A dispatched task."""

    key: str
    arrived_s: float
    at_s: float

    @property
    def wait_s(self) -> float:
        """Time from arrival to dispatch."""
        return self.at_s - self.arrived_s


class FairStore:
    """A real fair backlog on an in-memory store that never fails."""

    def __init__(self) -> None:
        self._backlog = FairBacklog[Arrival](
            ack_level=LEVEL_ZERO, max_level=LEVEL_ZERO, stored=(), overrides=WeightOverrides()
        )
        self._levels: list[Level] = []
        self._tasks: dict[Level, Arrival] = {}
        self._next_id = 1

    def add(self, task: Arrival) -> None:
        """Write a task at the level that the fair backlog assigns."""
        write = self._backlog.begin_write([task.share], ids=[self._next_id])
        self._next_id += 1
        level = write.levels[0]
        insort(self._levels, level)
        self._tasks[level] = task
        self._backlog.write_succeeded(write, [task])

    def take(self) -> Arrival | None:
        """Dispatch the task with the lowest level."""
        backlog = self._backlog
        while (read := backlog.next_read()) is not None:
            first = bisect_right(self._levels, read.after)
            page = self._levels[first : first + read.limit]
            backlog.read_succeeded(read, [(level, self._tasks[level]) for level in page])
        if not backlog.loaded:
            return None
        level = backlog.loaded[0]
        backlog.ack(level)
        return self._tasks[level]


class QueueStore:
    """First come, first served, for comparison."""

    def __init__(self) -> None:
        self._tasks: deque[Arrival] = deque()

    def add(self, task: Arrival) -> None:
        """Append a task."""
        self._tasks.append(task)

    def take(self) -> Arrival | None:
        """Dispatch the oldest task."""
        return self._tasks.popleft() if self._tasks else None


def arrivals(*, seed: int, keys: int, flood_tasks: int, tasks_per_s: float, duration_s: float) -> list[Arrival]:
    """Return the arrivals: one key adds all its tasks at the start; the others, of weights 1, 2 and 5, add 125% of the
    capacity.

    Each key adds tasks in proportion to its weight, so that all keys stay backlogged.
    """
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    shares = [Share(f"key-{number:02}", (1.0, 2.0, 5.0)[number % 3]) for number in range(keys)]
    flood = [Arrival(Share(FLOOD, 1.0), 0.0)] * flood_tasks
    weight_sum = sum(share.weight for share in shares)
    others = []
    for share in shares:
        rate_per_s = 1.25 * tasks_per_s * share.weight / weight_sum
        at_s = chance.expovariate(rate_per_s)
        while at_s < duration_s:
            others.append(Arrival(share, at_s))
            at_s += chance.expovariate(rate_per_s)
    return flood + sorted(others, key=lambda arrival: arrival.at_s)


def serve(
    store: FairStore | QueueStore, tasks: list[Arrival], *, tasks_per_s: float, duration_s: float
) -> list[Served]:
    """Dispatch at a steady rate for the whole duration."""
    served = []
    arriving = iter(tasks)
    coming = next(arriving, None)
    for turn in range(int(duration_s * tasks_per_s)):
        now_s = turn / tasks_per_s
        while coming is not None and coming.at_s <= now_s:
            store.add(coming)
            coming = next(arriving, None)
        task = store.take()
        if task is not None:
            served.append(Served(task.share.key, task.at_s, now_s))
    return served


def summarise(served: list[Served], weights: Mapping[str, float]) -> dict[str, tuple[float, float, float | None]]:
    """Return for each key its share of the dispatches, the share that its weight deserves, and its median wait."""
    weight_sum = sum(weights.values())
    summary = {}
    for key, weight in weights.items():
        waits = sorted(task.wait_s for task in served if task.key == key)
        wait_s = waits[len(waits) // 2] if waits else None
        summary[key] = (len(waits) / max(1, len(served)), weight / weight_sum, wait_s)
    return summary


def jain(by_key: Mapping[str, tuple[float, float, float | None]], keys: list[str]) -> float:
    """Return the Jain index of these keys' shares, each divided by the share that its weight deserves."""
    return jain_index([by_key[key][0] / by_key[key][1] for key in keys])


@simulation("fairness")
@click.option(
    "--keys",
    type=click.IntRange(1, KEYS_MAX),
    default=6,
    show_default=True,
    help="Number of keys beside the flooding one.",
)
@click.option(
    "--flood-tasks", type=click.IntRange(0, 200_000), default=6_000, show_default=True, help="Tasks in the flood."
)
@click.option(
    "--rate", type=click.IntRange(10, 2000), default=200, show_default=True, help="Tasks dispatched per second."
)
@click.option("--duration", type=click.IntRange(5, 300), default=60, show_default=True, help="Seconds of the run.")
def fairness(seed: int, keys: int, flood_tasks: int, rate: int, duration: int) -> Report:
    """Show each key's share when one key floods a task queue.

    At the start, one key adds a flood of tasks. Other keys, of weights 1, 2 and 5, then ask for 1.25 times the capacity
    of the workers. The same arrivals are dispatched twice: by the fair backlog, and first come, first served.

    Fair means: the share of each key is near the share that its weight deserves, and its tasks wait for the key's own
    backlog, not for the flood. The Jain index of share over weight is 1 if all keys get what they deserve; it counts
    only the keys that had tasks to the end.
    """
    if flood_tasks + 1.25 * rate * duration > TASKS_MAX:
        raise click.UsageError(
            f"--flood-tasks {flood_tasks}, and --rate {rate} over --duration {duration}, make more than {TASKS_MAX:,} "
            "tasks: lower one of them"
        )
    tasks = arrivals(seed=seed, keys=keys, flood_tasks=flood_tasks, tasks_per_s=rate, duration_s=duration)
    weights = {task.share.key: task.share.weight for task in sorted(tasks, key=lambda task: task.share.key)}
    fair = serve(FairStore(), tasks, tasks_per_s=rate, duration_s=duration)
    queue = serve(QueueStore(), tasks, tasks_per_s=rate, duration_s=duration)
    by_fair, by_queue = summarise(fair, weights), summarise(queue, weights)
    # A key that added less than its fair share gets less, which is not unfair.
    done, asked = Counter(task.key for task in fair), Counter(task.share.key for task in tasks)
    busy = [key for key in weights if done[key] < asked[key]]
    rows = [
        (key, weights[key], by_fair[key][1], by_fair[key][0], by_queue[key][0], by_fair[key][2], by_queue[key][2])
        for key in weights
    ]
    return Report(
        subject="fairness",
        summary=(
            f"while one key floods, the fair backlog gives each key its share (Jain index {jain(by_fair, busy):.3f}); "
            f"first come, first served does not ({jain(by_queue, busy):.3f})"
        ),
        parameters={
            "seed": seed, "keys": keys, "flood_tasks": flood_tasks, "rate_per_s": rate, "duration_s": duration,
        },
        tables=[
            Table(
                name="keys",
                title="Each key's share of the dispatches, and its median wait",
                columns=("key", "weight", "deserved_share", "fair_share", "queue_share", "fair_wait_s", "queue_wait_s"),
                rows=rows,
                note="A wait of '-': no task of the key was dispatched at all.",
            ),
            Table(
                name="summary",
                title="All keys together",
                columns=("order", "dispatched", "jain_index", "keys_starved"),
                rows=[
                    (order, len(served), jain(by, busy),
                     sum(wait_s is None for _, _, wait_s in by.values()))
                    for order, served, by in (("fair", fair, by_fair), ("first come, first served", queue, by_queue))
                ],
                note=f"Jain index of share over weight, over the {len(busy)} keys that had tasks to the end.",
            ),
        ],
        draw=lambda figure: draw(figure, fair, queue, weights, duration),
    )  # fmt: skip


def draw(
    figure: "Figure", fair: list[Served], queue: list[Served], weights: Mapping[str, float], duration_s: int
) -> None:
    """Draw each key's share over time with the deserved shares: fair above, first come, first served below."""
    weight_sum = sum(weights.values())
    shown = list(weights)[:KEYS_DRAWN_MAX]
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    edges = [duration_s * number / BINS for number in range(BINS + 1)]
    for axis, served, title in ((axes[0], fair, "Fair backlog"), (axes[1], queue, "First come, first served")):
        in_bin: list[dict[str, int]] = [dict.fromkeys(weights, 0) for _ in range(BINS)]
        for task in served:
            in_bin[min(BINS - 1, int(task.at_s / duration_s * BINS))][task.key] += 1
        bottom = [0.0] * BINS
        for key in shown:
            share = [counts[key] / max(1, sum(counts.values())) for counts in in_bin]
            label = f"{key} (weight {weights[key]:g}, deserves {weights[key] / weight_sum:.0%})"
            axis.bar(edges[:-1], share, width=duration_s / BINS, bottom=bottom, align="edge", label=label)
            bottom = [low + high for low, high in zip(bottom, share, strict=True)]
        if len(shown) < len(weights):
            others = [1 - low if any(counts.values()) else 0 for low, counts in zip(bottom, in_bin, strict=True)]
            label = f"{len(weights) - len(shown)} other keys"
            axis.bar(
                edges[:-1], others, width=duration_s / BINS, bottom=bottom, align="edge", color="lightgrey", label=label
            )
        for low in _deserved_edges(weights, shown):
            axis.axhline(low, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{title}: share of the dispatches (dotted: the deserved shares)", loc="left")
        axis.set_ylabel("share")
        axis.set_ylim(0, 1)
        axis.set_xlim(0, duration_s)
    axes[1].set_xlabel("time, seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)


def _deserved_edges(weights: Mapping[str, float], shown: list[str]) -> list[float]:
    weight_sum = sum(weights.values())
    edges, low = [], 0.0
    for key in shown:
        low += weights[key] / weight_sum
        edges.append(low)
    return edges
