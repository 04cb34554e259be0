"""NATS JetStream: a work queue with 50 consumers that fetch and acknowledge at the same time."""

import asyncio

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from runs import AT_ONCE, Tally, add_in_tasks, arguments, end

what, address, tasks = arguments()
tally = Tally(tasks)


async def main() -> None:
    connection = await nats.connect(address)
    stream = connection.jetstream()
    if what == "add":
        await stream.add_stream(StreamConfig("noops", subjects=["noops"], retention=RetentionPolicy.WORK_QUEUE))
        await add_in_tasks(tasks, lambda: stream.publish("noops", b"x" * 100))
        return
    subscription = await stream.pull_subscribe(
        "noops", durable="workers", config=ConsumerConfig(max_ack_pending=10_000)
    )

    async def work() -> None:
        while not tally.is_done.is_set():
            for message in await subscription.fetch(1, timeout=5):
                await message.ack_sync()
                tally.count()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)), return_exceptions=True)
    end()


asyncio.run(main())
