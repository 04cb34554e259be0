"""DBOS on PostgreSQL: workflows of a queue, 50 at the same time."""

from dbos import DBOS
from runs import AT_ONCE, Tally, add_in_threads, arguments, end

what, address, tasks = arguments()
DBOS(config={"name": "peers", "system_database_url": address, "log_level": "ERROR"})
tally = Tally(tasks)


@DBOS.workflow()
def noop() -> None:
    tally.count()


# The process that adds the workflows does not execute any.
DBOS.listen_queues([] if what == "add" else ["noops"])
DBOS.launch()
queue = DBOS.register_queue("noops", worker_concurrency=AT_ONCE, polling_interval_sec=0.05)
if what == "add":
    add_in_threads(tasks, lambda: queue.enqueue(noop))
else:
    tally.is_done.wait()
end()
