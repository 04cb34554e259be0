"""beanstalkd: 50 connections that reserve and delete jobs."""

import threading

import greenstalk
from runs import AT_ONCE, Tally, add_in_threads, arguments, end

what, address, tasks = arguments()
host, port = address.rsplit(":", 1)
tally = Tally(tasks)
local = threading.local()


def client() -> greenstalk.Client:
    if not hasattr(local, "client"):
        local.client = greenstalk.Client((host, int(port)))
    return local.client


def work() -> None:
    while True:
        client().delete(client().reserve())
        tally.count()


if what == "add":
    add_in_threads(tasks, lambda: client().put("x" * 100))
else:
    for _ in range(AT_ONCE):
        threading.Thread(target=work, daemon=True).start()
    tally.is_done.wait()
end()
