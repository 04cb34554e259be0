"""The table of slots agrees with a model that counts."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.core.concurrency import Full, Slot, SlotLimits, SlotTable


class SlotMachine(RuleBasedStateMachine):
    """Takes and frees slots of two keys in two task queues, under limits that change."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable()
        self.model: dict[str, Slot] = {}

    @rule(
        token=st.sampled_from("123456789"),
        queue=st.sampled_from("pq"),
        key=st.sampled_from("ab"),
        limits=st.builds(SlotLimits, st.integers(0, 3), st.integers(0, 4)),
    )
    def take(self, token: str, queue: str, key: str, limits: SlotLimits) -> None:
        slot = Slot(token, 1, "ns", queue, key, "ns", "w", "r", 1)
        same_queue = [one for one in self.model.values() if one.task_queue == queue]
        same_key = [one for one in same_queue if one.fairness_key == key]
        expected = None
        if token not in self.model:
            if limits.key_max and len(same_key) >= limits.key_max:
                expected = Full.KEY
            elif limits.queue_max and len(same_queue) >= limits.queue_max:
                expected = Full.QUEUE
        assert self.table.take(slot, limits) is expected
        if expected is None:
            self.model.setdefault(token, slot)

    @rule(token=st.sampled_from("123456789"))
    def free(self, token: str) -> None:
        self.table.free(token)
        self.model.pop(token, None)

    @invariant()
    def they_agree(self) -> None:
        assert self.table.of_shard(1) == sorted(self.model.values())
        for queue in "pq":
            counts = self.table.counts("ns", queue)
            assert counts.total() == sum(slot.task_queue == queue for slot in self.model.values())


TestSlotMachine = SlotMachine.TestCase
