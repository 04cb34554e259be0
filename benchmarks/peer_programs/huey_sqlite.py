"""Huey on SQLite with fsync: a consumer with 50 threads."""

from huey import SqliteHuey
from runs import AT_ONCE, Tally, add_in_threads, arguments, end

what, address, tasks = arguments()
huey = SqliteHuey(filename=address, fsync=True, results=False, timeout=60)
tally = Tally(tasks)


@huey.task(name="noop")
def noop() -> None:
    tally.count()


if what == "add":
    add_in_threads(tasks, noop)
else:
    consumer = huey.create_consumer(workers=AT_ONCE, worker_type="thread", initial_delay=0.05, periodic=False)
    consumer.start()
    tally.is_done.wait()
end()
