"""The root of a task queue decides the number of partitions, and pushes it to all partitions.

The counts come from the database or from the settings. In both cases they change through `core.partitions.change`: up
at once, down in two phases. The dispatch rules that calls set are pushed like the configuration, with a version of
their own.

The stored configuration is authoritative. A change is saved first, then used, then pushed, so no partition ever uses a
configuration that a crash could undo. If the outcome of a save is unknown, the state is read back before the next
decision. Changes run one after the other under one lock, which is held from the first call to the partitions until the
store has answered.

Each change runs in an asyncio task of its own, and so does each store call of the change. So cancelling a caller
interrupts no change. And if a save fails and closes this coordinator, `close` does not wait for the task that called
it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.aio.background import Background
from fairlead.aio.backoff import jitter_of
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import (
    PARTITIONS_MAX,
    PartitionConfig,
    PartitionCounts,
    approach,
    change,
    is_drained,
)
from fairlead.core.scaling import AdaptiveScaler, Decision, ScalerState
from fairlead.matching.clock import Clock
from fairlead.matching.dispatch_rules import change_rules
from fairlead.matching.messages import (
    ConfigureRequest,
    ConfigureResponse,
    CountsInfo,
    DescribeResponse,
    DispatchRules,
    ExplainResponse,
    ScalerClocks,
    ScalerIsOn,
    UpdateResponse,
)
from fairlead.matching.root.config_push import Push, Pushes
from fairlead.matching.root.decisions import DecisionLog
from fairlead.matching.root.durable_state import DurableState
from fairlead.matching.root.partition_reports import Ask, PartitionReports, drain_reports
from fairlead.matching.root.state import CountsSource, RootState, RootStore
from fairlead.matching.root.target_counts import CountsGoal
from fairlead.matching.root.timer import RootTimer
from fairlead.settings import DynamicSettings, Scope, Setting, scaler_settings
from fairlead.settings.dynamic import matching
from fairlead.telemetry import PartitionMetrics

# Highest version that a root accepts from other partitions and clients; the stores can hold far higher ones.
VERSION_MAX = 2**53
# Settings that determine the number of partitions.
COUNTS_SETTINGS: tuple[Setting[Any], ...] = (
    matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE,
    matching.NUM_READ_PARTITIONS,
    matching.NUM_WRITE_PARTITIONS,
)

_LOG: FilteringBoundLogger = structlog.get_logger()


class RootCoordinator:
    """Owns the partition configuration of one task queue, as long as the root's lease is held.

    `on_change` is called with a new configuration or new rules, before they are pushed. The coordinator stops by itself
    when the lease is lost. `outside` maps each stored partition that the configuration does not read to whether it
    holds tasks.
    """

    def __init__(
        self,
        *,
        state: RootState,
        store: RootStore,
        outside: Mapping[int, bool],
        ask: Ask,
        push: Push,
        on_change: Callable[[PartitionConfig, DispatchRules], None],
        settings: DynamicSettings,
        scope: Scope,
        clock: Clock,
        counts: PartitionMetrics,
        log: FilteringBoundLogger = _LOG,
    ) -> None:
        self._on_change = on_change
        self._settings = settings
        self._goal = CountsGoal(settings, scope)
        self._scope = scope
        self._clock = clock
        self._log = log.bind(task_queue=scope.task_queue)
        self._scaler = AdaptiveScaler()
        self.decisions = DecisionLog(counts, began_s=clock())
        self._background = Background(self._log)
        jitter = jitter_of(repr(scope))
        self._durable = DurableState(
            state, store, on_use=self._use, on_lease_lost=self.stop, log=self._log, jitter=jitter
        )
        self._pushes = Pushes(
            push,
            state.config,
            state.rules,
            background=self._background,
            log=self._log,
            on_newer=self.note_newer,
            jitter=jitter,
        )
        self._reports = PartitionReports(ask, pushes=self._pushes, background=self._background)
        # Partitions outside the counts that may hold tasks; each is removed when a report proves that it is drained.
        self._outside = {number for number, has_tasks in outside.items() if has_tasks}
        self._newest_version = state.config.version
        self._changing = asyncio.Lock()
        self._timer = RootTimer(
            settings=settings,
            scope=scope,
            background=self._background,
            tick=self._tick,
            is_tick_wanted=self._is_tick_wanted,
            repair=self.repair,
            is_quiet=lambda: self._pushes.is_quiet,
            approach=self._approach,
            has_approached=self._has_approached,
        )
        self._subscriptions = [settings.subscribe_all(COUNTS_SETTINGS, lambda _: self._timer.check_counts_now(), scope)]

    @property
    def config(self) -> PartitionConfig:
        """The configuration in force: stored, and used by the root."""
        return self._durable.current.config

    def start(self) -> None:
        """Begin the periodic work, at the intervals in the settings.

        The first push is due at once: the previous owner may have crashed after a save, before the push.
        """
        if not self._background.is_ended:
            self._timer.start()

    def stop(self) -> None:
        """Stop deciding and pushing."""
        for unsubscribe in self._subscriptions:
            unsubscribe()
        self._timer.stop()
        self._pushes.end()
        self._background.end()

    async def close(self) -> None:
        """Stop, and wait for the background tasks. May be called from a callback of the coordinator too."""
        self.stop()
        await self._background.ended()

    async def tick(self) -> Decision:
        """Let the scaler decide once, and put its decision into force; if that fails, the configuration stays."""
        return await self._background.apart(self._tick())

    async def repair(self) -> None:
        """Push the configuration to all partitions that have not acknowledged it, and to some that have."""
        self._pushes.remind()
        await self._pushes.tried()

    async def approach(self) -> None:
        """Take the next steps towards the counts of the source, and drain the partitions above them."""
        await self._background.apart(self._approach())

    def note_outside(self, number: int) -> None:
        """Drain a partition that reports tasks, if the configuration does not read it."""
        if number >= self.config.read and number not in self._outside:
            self._outside.add(number)
            self._timer.check_counts_now()

    def note_newer(self, version: int) -> None:
        """Handle a configuration that is newer than the root's: the stored row was lost, or is an older copy.

        The root continues above that version, since no partition or client accepts a lower one.
        """
        if self._newest_version < version <= VERSION_MAX:
            self._newest_version = version
            self._timer.check_counts_now()

    def counts_info(self) -> CountsInfo:
        """The source of the counts, the counts in both sources, and the partitions above them that are drained."""
        source = self._wanted_source()
        database = source.planned if source.is_settings or source.planned else self.config.counts
        return CountsInfo(
            is_from_settings=source.is_settings,
            settings=self._goal.settings_counts,
            database=database,
            outside=sorted(number for number in self._outside if number >= self.config.read),
        )

    async def update(self, *, read: int, write: int, force: bool) -> UpdateResponse:
        """Change the counts by hand, within the guardrails of `core.partitions.change`."""
        return await self._background.apart(self._update(read=read, write=write, force=force))

    async def configure(self, change: ConfigureRequest) -> ConfigureResponse:
        """Change the dispatch rules."""
        return await self._background.apart(self._configure(change))

    def explain(self) -> ExplainResponse:
        """Return the scaler's last decision, the latest changes, and the versions that partitions acknowledged."""
        return ExplainResponse(
            enabled=self._is_scaler_on,
            config=self.config,
            latest=self.decisions.latest_info,
            changes=self.decisions.changes,
            acknowledged={0: self.config.version, **self._pushes.acknowledged},
            waits_for=self._goal.scaler_waits_for(self._durable.current.source),
            clocks=ScalerClocks(*astuple(self._scaler.state)),
            changes_since_s=self.decisions.began_s,
        )

    @property
    def _is_scaler_on(self) -> bool:
        return self._goal.is_scaler_on(self._durable.current.source)

    def _is_tick_wanted(self) -> bool:
        # After the scaler is switched off, one more tick resets its state.
        return self._is_scaler_on or self._scaler.state != ScalerState()

    def _wanted_source(self) -> CountsSource:
        return self._goal.source(self.config, self._durable.current.source)

    # Changes

    async def _tick(self) -> Decision:
        async with self._changing:
            await self._durable.resolve_doubt()
            answers = (
                await self._reports.of(range(self.config.read), drained_from=self.config.write)
                if self._is_scaler_on
                else []
            )
            decision = self._scaler.tick(
                self._clock(),
                self.config,
                {answer.partition: answer.scaler_adds_per_s for answer in answers},
                drain_reports(answers),
                # Read the settings after the reports arrived: the scaler may have been switched off in the meantime.
                replace(scaler_settings(self._settings, self._scope), enabled=self._is_scaler_on),
            )
            if decision.after != decision.before:
                try:
                    await self._durable.put_in_force(self._durable.current.with_config(decision.after))
                except FairleadError as error:
                    return self.decisions.note_failed(decision, error)
            self.decisions.note(decision)
            return decision

    async def _update(self, *, read: int, write: int, force: bool) -> UpdateResponse:
        async with self._changing:
            await self._durable.resolve_doubt()
            if self._wanted_source().is_settings:
                return await self._plan(PartitionCounts(read, write))
            leaving = range(max(read, self.config.write), self.config.read)
            answers: list[DescribeResponse] = []
            if not force and not self._is_scaler_on:
                answers = await self._reports.of(leaving, drained_from=self.config.write)
            if self._is_scaler_on:
                raise ScalerIsOn(
                    f"the adaptive scaler sets the number of partitions of {self._scope.task_queue!r}: "
                    f"switch it off with {matching.ENABLE_ADAPTIVE_SCALER.key}, or set its minimum and maximum"
                )
            before = self.config
            after = change(
                before, read=read, write=write, maximum=PARTITIONS_MAX, reports=drain_reports(answers), force=force
            )
            state = self._durable.current.with_config(after, CountsSource())
            if state != self._durable.current:
                try:
                    await self._durable.put_in_force(state)
                except FairleadError:
                    self.decisions.counts.tasklist_partition_update_failed_per_tl += 1
                    raise
            if after != before:
                self.decisions.note_by_hand(at_s=self._clock(), before=before, after=after, force=force)
                if force:
                    self._outside.update(range(after.read, before.read))
                    self._timer.check_counts_now()
            return UpdateResponse(before, after)

    async def _plan(self, counts: PartitionCounts) -> UpdateResponse:
        """Save the counts of the database while the settings are the source."""
        source = self._wanted_source()
        before = source.planned or self.config.counts
        if source.planned != counts:
            await self._durable.put_in_force(replace(self._durable.current, source=replace(source, planned=counts)))
        version = self.config.version
        return UpdateResponse(
            PartitionConfig(version, before.read, before.write),
            PartitionConfig(version, counts.read, counts.write),
            is_planned=True,
        )

    async def _configure(self, change: ConfigureRequest) -> ConfigureResponse:
        async with self._changing:
            await self._durable.resolve_doubt()
            weights_max = self._settings.get(matching.MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES, self._scope)
            rules = change_rules(self._durable.current.rules, change, now_s=self._clock(), weights_max=weights_max)
            if rules != self._durable.current.rules:
                await self._durable.put_in_force(replace(self._durable.current, rules=rules))
            return ConfigureResponse(self._durable.current.rules)

    async def _approach(self) -> None:
        async with self._changing:
            await self._durable.resolve_doubt()
            if self.config.version < self._newest_version:
                config = replace(self.config, version=self._newest_version + 1)
                self._log.warning("partition_config_version_recovered", version=config.version)
                await self._durable.put_in_force(self._durable.current.with_config(config))
            source = self._wanted_source()
            target = self._goal.target(self.config, source)
            await self._move(approach(self.config, target), source)
            self._outside = {number for number in self._outside if number >= self.config.read}
            leaving = range(max(target.read, self.config.write), self.config.read)
            answers = await self._reports.of({*leaving, *self._outside}, drained_from=self.config.write)
            reports = drain_reports(answers)
            self._outside -= {report.partition for report in reports if is_drained(report, self.config)}
            await self._move(approach(self.config, target, reports), source)

    async def _move(self, config: PartitionConfig, source: CountsSource) -> None:
        """Put `config` into force, the next step towards the counts of `source`."""
        before = self.config
        source = self._goal.source_at(config, source)
        state = self._durable.current.with_config(config, source)
        if state == self._durable.current:
            return
        await self._durable.put_in_force(state)
        self._timer.reset_drain_pause()
        if config != before:
            self.decisions.note_source(
                at_s=self._clock(), before=before, after=config, is_from_settings=source.is_settings
            )

    def _use(self, before: RootState, state: RootState) -> None:
        config, rules = state.config, state.rules
        self._newest_version = max(self._newest_version, config.version)
        if rules != before.rules:
            self._log.info("dispatch_rules_changed", version=rules.version)
        if config != before.config:
            self._log.info("partition_config_changed", version=config.version, read=config.read, write=config.write)
        if (config, rules) != (before.config, before.rules):
            self._on_change(config, rules)
            self._pushes.notify(config, rules)
        self._timer.arm()

    def _has_approached(self) -> bool:
        """Whether the counts of the source are in force, and no partition above them is left to drain."""
        current = self._durable.current
        return (
            self._goal.is_reached(current.config, current.source)
            and not self._outside
            and self.config.version >= self._newest_version
        )
