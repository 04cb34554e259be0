"""Dramatiq on Redis: a worker with 50 threads."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from runs import AT_ONCE, Tally, add_in_threads, arguments, end

what, address, tasks = arguments()
broker = RedisBroker(url=address)
dramatiq.set_broker(broker)
tally = Tally(tasks)


@dramatiq.actor
def noop() -> None:
    tally.count()


if what == "add":
    add_in_threads(tasks, noop.send)
else:
    dramatiq.Worker(broker, worker_threads=AT_ONCE).start()
    tally.is_done.wait()
    end()
