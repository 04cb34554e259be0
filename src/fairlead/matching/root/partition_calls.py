"""Calls from the root of a task queue to its partitions, itself included."""

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import (
    DESCRIBE,
    PUSH,
    DescribeRequest,
    DescribeResponse,
    DispatchRules,
    PushRequest,
    Versions,
)
from fairlead.matching.partition.dependencies import CALL_S_MAX, Dependencies
from fairlead.matching.partition.describer import Describer


class PartitionCalls:
    """Describes partitions and pushes to them. The root describes itself without a call."""

    def __init__(self, dependencies: Dependencies, describer: Describer) -> None:
        self._dependencies = dependencies
        self._describer = describer

    async def describe(self, number: int, with_drain: bool) -> DescribeResponse:  # noqa: FBT001 - the shape of `Ask`
        """Describe a partition; with a drain report if `with_drain`."""
        partition = self._dependencies.sibling(number)
        request = DescribeRequest(partition, with_drain=with_drain)
        if number == self._dependencies.number:
            return await self._describer.describe(request)
        return await self._dependencies.peers.ask(partition, DESCRIBE, request, timeout_s=CALL_S_MAX)

    async def push(self, number: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
        """Push the configuration and the rules; return the versions that the partition uses afterwards."""
        partition = self._dependencies.sibling(number)
        request = PushRequest(partition, config, rules)
        answer = await self._dependencies.peers.ask(partition, PUSH, request, timeout_s=CALL_S_MAX)
        return Versions(answer.version, rules.version if answer.rules_version < 0 else answer.rules_version)
