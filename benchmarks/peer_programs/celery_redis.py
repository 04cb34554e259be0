"""Celery on Redis, with late acknowledgements, and 50 threads in the worker."""

from celery import Celery
from celery.signals import worker_process_init  # noqa: F401 - loads Celery's signals before the worker
from runs import AT_ONCE, Tally, add_in_threads, arguments, end

what, address, tasks = arguments()
app = Celery("peers", broker=address)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_pool_limit=AT_ONCE,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)
tally = Tally(tasks)


@app.task(name="noop")
def noop() -> None:
    tally.count()
    if tally.is_done.is_set():
        end()


if what == "add":
    add_in_threads(tasks, noop.delay)
else:
    app.worker_main(
        [
            "worker",
            "--pool=threads",
            f"--concurrency={AT_ONCE}",
            "--loglevel=ERROR",
            "--without-gossip",
            "--without-mingle",
        ]
    )
