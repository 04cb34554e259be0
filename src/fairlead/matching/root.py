"""What the root does for its task list: keeps the number of partitions right, and all partitions informed of it.

The rules of dispatch that calls set go the same way: they are saved with a configuration of the next version, whatever
its counts, so that all partitions hear of them as they hear of that.

The stored configuration is the truth. A change is saved first, then used, then told to the others: so nobody ever goes
by what a crash could take back. Where the store does not say whether it has saved, it is read back before anything
else is decided. Changes are made one after the other, under one lock, from the questions that a decision rests on to
the answer of the store.

Every change runs apart from whoever asked for it, and every call of the store apart from the change. So a caller that
goes away leaves nothing half done, and a failing save whose failure has this coordinator closed waits for nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PARTITIONS_MAX, DrainReport, PartitionConfig, accept, change
from fairlead.core.scaling import AdaptiveScaler, Decision, ScalerState
from fairlead.matching.background import Background
from fairlead.matching.backlog import Clock
from fairlead.matching.decisions import DecisionLog
from fairlead.matching.messages import (
    ConfigureAnswer,
    ConfigureRequest,
    DescribeAnswer,
    DispatchRules,
    ExplainAnswer,
    ScalerIsOn,
    UpdateAnswer,
)
from fairlead.matching.pushes import Push, Pushes, retry_pause_s
from fairlead.matching.rules import change_rules
from fairlead.settings import DynamicSettings, Scope, matching, scaler_settings
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import PartitionMetrics

T = TypeVar("T")

ASKS_AT_ONCE_MAX = 64
ASK_S_MAX = 2.0
# All partitions together; those that were not heard of by then are unknown at this tick.
ASKS_S_MAX = 10.0

# Saves under the root's lease.
Save = Callable[[PartitionConfig], Coroutine[Any, Any, None]]
# What is stored when no earlier save can take effect any more: the lease is renewed first, and then it is read.
Load = Callable[[], Coroutine[Any, Any, PartitionConfig | None]]
# The same for both together, and of the rules alone: what was saved with the configuration that was loaded, or later.
SaveRules = Callable[[PartitionConfig, DispatchRules], Coroutine[Any, Any, None]]
LoadRules = Callable[[], Coroutine[Any, Any, DispatchRules]]
# Describes a partition; with its drain report if the second argument says so.
Ask = Callable[[int, bool], Awaitable[DescribeAnswer]]

_LOG: FilteringBoundLogger = structlog.get_logger()


class RootCoordinator:
    """Owns the partition configuration of one task list, as long as the root's lease is held.

    `on_change` is called with what is in force when it has changed, before anybody else is told. When the lease is
    lost everything here stops by itself.
    """

    def __init__(
        self,
        *,
        config: PartitionConfig,
        rules: DispatchRules,
        save: Save,
        load: Load,
        save_rules: SaveRules,
        load_rules: LoadRules,
        ask: Ask,
        push: Push,
        on_change: Callable[[PartitionConfig, DispatchRules], None],
        settings: DynamicSettings,
        scope: Scope,
        clock: Clock,
        counts: PartitionMetrics,
        log: FilteringBoundLogger = _LOG,
    ) -> None:
        self._config = config
        self._rules = rules
        self._save = save
        self._load = load
        self._save_rules = save_rules
        self._load_rules = load_rules
        self._ask = ask
        self._on_change = on_change
        self._settings = settings
        self._scope = scope
        self._clock = clock
        self._log = log.bind(namespace=scope.namespace, task_list=scope.task_list)
        self._scaler = AdaptiveScaler()
        self._decisions = DecisionLog(counts)
        self._background = Background(self._log)
        # Never ended: to cancel a call of the store does not undo it, and it may be the one that closes us.
        self._store_calls = Background(self._log)
        self._pushes = Pushes(push, config, background=self._background, log=self._log)
        self._changing = asyncio.Lock()
        self._is_in_doubt = False
        self._is_started = False
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due_s = self._repair_due_s = 0.0
        self._ticking: asyncio.Task[Decision] | None = None
        self._repairing: asyncio.Task[None] | None = None

    @property
    def config(self) -> PartitionConfig:
        """The configuration in force: stored, and used by the root."""
        return self._config

    @property
    def latest(self) -> Decision | None:
        """What the scaler decided last."""
        return self._decisions.latest

    def start(self) -> None:
        """Begin to look at the load and after the partitions, at the intervals that the settings give.

        The partitions are told at once: the last owner may have crashed between saving and telling.
        """
        if self._background.is_ended:
            return
        self._is_started = True
        now_s = asyncio.get_running_loop().time()
        self._tick_due_s = now_s + self._settings.get(matching.ADAPTIVE_SCALER_UPDATE_INTERVAL, self._scope)
        self._repair_due_s = now_s
        self._arm()

    def stop(self) -> None:
        """Decide and push nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._pushes.end()
        self._background.end()

    async def close(self) -> None:
        """Stop; may be called at any time, by anybody, also from within what this coordinator calls."""
        self.stop()
        await self._background.ended()

    async def tick(self) -> Decision:
        """Let the scaler decide once, and put its decision into force; where that fails, what was stays."""
        return await self._background.apart(self._tick())

    async def repair(self) -> None:
        """Push the configuration to each partition that is not known to have acknowledged it, and remind some."""
        self._pushes.look_again()
        await self._pushes.tried()

    async def update(self, *, read: int, write: int, force: bool) -> UpdateAnswer:
        """Change the counts by hand, within the guardrails of `core.partitions.change`."""
        return await self._background.apart(self._update(read=read, write=write, force=force))

    async def configure(self, change: ConfigureRequest) -> ConfigureAnswer:
        """Change the rules of dispatch."""
        return await self._background.apart(self._configure(change))

    def explain(self) -> ExplainAnswer:
        """What the scaler decided last, what changed of late, and who has acknowledged it."""
        return ExplainAnswer(
            enabled=self._is_scaler_on,
            config=self._config,
            latest=self._decisions.latest_info,
            changes=self._decisions.changes,
            acknowledged={0: self._config.version, **self._pushes.acknowledged},
        )

    @property
    def _is_scaler_on(self) -> bool:
        return self._settings.get(matching.ENABLE_ADAPTIVE_SCALER, self._scope)

    # Changes

    async def _tick(self) -> Decision:
        async with self._changing:
            await self._resolve_doubt()
            answers = await self._ask_all(range(self._config.read)) if self._is_scaler_on else []
            decision = self._scaler.tick(
                self._clock(),
                self._config,
                {answer.partition: answer.scaler_adds_per_s for answer in answers},
                _drain_reports(answers),
                # After the answers: the scaler may have been switched off while we waited for them.
                scaler_settings(self._settings, self._scope),
            )
            if decision.after != decision.before:
                try:
                    await self._put_in_force(decision.after)
                except FairleadError as error:
                    return self._decisions.note_failed(decision, error)
            self._decisions.note(decision)
            return decision

    async def _update(self, *, read: int, write: int, force: bool) -> UpdateAnswer:
        async with self._changing:
            await self._resolve_doubt()
            leaving = range(max(read, self._config.write), self._config.read)
            answers = [] if force or self._is_scaler_on else await self._ask_all(leaving)
            if self._is_scaler_on:
                raise ScalerIsOn(
                    f"the adaptive scaler governs the partitions of {self._scope.task_list!r}: "
                    f"switch it off with {matching.ENABLE_ADAPTIVE_SCALER.key}, or set its minimum and maximum"
                )
            before = self._config
            after = change(
                before, read=read, write=write, maximum=PARTITIONS_MAX, reports=_drain_reports(answers), force=force
            )
            if after != before:
                try:
                    await self._put_in_force(after)
                except FairleadError:
                    self._decisions.counts.tasklist_partition_update_failed_per_tl += 1
                    raise
                self._decisions.note_by_hand(at_s=self._clock(), before=before, after=after, force=force)
            return UpdateAnswer(before, after)

    async def _configure(self, change: ConfigureRequest) -> ConfigureAnswer:
        async with self._changing:
            await self._resolve_doubt()
            weights_max = self._settings.get(matching.MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES, self._scope)
            rules = change_rules(self._rules, change, now_s=self._clock(), weights_max=weights_max)
            if rules != self._rules:
                config = PartitionConfig(self._config.version + 1, self._config.read, self._config.write)
                await self._put_in_force(config, rules)
            return ConfigureAnswer(self._rules)

    async def _put_in_force(self, config: PartitionConfig, rules: DispatchRules | None = None) -> None:
        """Save, then use; where this raises, it is not in force and, unless in doubt, not stored."""
        self._is_in_doubt = True
        try:
            await self._in_store(self._save(config) if rules is None else self._save_rules(config, rules))
        except StoreUnavailable:
            self._is_in_doubt = False
            raise
        except OutcomeUnknown as error:
            await self._resolve_doubt()
            if self._config != config:
                raise StoreUnavailable(f"{error}; it was not saved, as the store says now: try again") from error
            return
        self._is_in_doubt = False
        self._use(config, rules or self._rules)

    async def _resolve_doubt(self) -> None:
        """Go by what is stored, where it is not known what is; ask until the store answers."""
        failures = 0
        while self._is_in_doubt:
            try:
                stored = await self._in_store(self._load())
                rules = await self._in_store(self._load_rules())
            except (StoreUnavailable, OutcomeUnknown) as error:
                failures += 1
                self._log.warning("partition_config_in_doubt", error=str(error))
                await asyncio.sleep(retry_pause_s(failures))
                continue
            if stored is not None and accept(self._config, stored) != self._config:
                self._use(stored, rules)
            self._is_in_doubt = False

    async def _in_store(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._store_calls.apart(call)
        except LeaseLost:
            # Another root decides now. This one is about to be unloaded.
            self.stop()
            raise

    def _use(self, config: PartitionConfig, rules: DispatchRules) -> None:
        if rules != self._rules:
            self._log.info("dispatch_rules_changed", version=rules.version)
        self._log.info("partition_config_changed", version=config.version, read=config.read, write=config.write)
        self._config, self._rules = config, rules
        self._on_change(config, rules)
        self._pushes.tell(config)
        self._arm()

    async def _ask_all(self, numbers: Sequence[int]) -> list[DescribeAnswer]:
        """What the partitions say of themselves, of those that answer in time."""
        answers: list[DescribeAnswer] = []

        async def ask(number: int) -> None:
            # Who does not answer is unknown at this tick, and the decision says so.
            with suppress(FairleadError, TimeoutError):
                async with asyncio.timeout(ASK_S_MAX):
                    answers.append(await self._ask(number, number >= self._config.write))

        await self._background.each(numbers, ask, at_once_max=ASKS_AT_ONCE_MAX, wait_s_max=ASKS_S_MAX)
        for answer in answers:
            self._pushes.note(answer.partition, answer.config.version)
        return answers

    # The timer

    def _arm(self) -> None:
        """Have one timer, and only one, whatever there is to do; a root that is alone has nobody to look after."""
        if not self._is_started or self._background.is_ended:
            return
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._tick_due_s if self._pushes.is_quiet else min(self._tick_due_s, self._repair_due_s)
        self._timer = asyncio.get_running_loop().call_at(due_s, self._wake, due_s)

    def _wake(self, now_s: float) -> None:
        """Do what is due, unless it is still being done since the last time."""
        now_s = max(now_s, asyncio.get_running_loop().time())
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + self._settings.get(matching.ADAPTIVE_SCALER_UPDATE_INTERVAL, self._scope)
            # Where it was switched off, one more tick makes the scaler forget.
            is_wanted = self._is_scaler_on or self._scaler.state != ScalerState()
            if is_wanted and (self._ticking is None or self._ticking.done()):
                self._ticking = self._background.begin(self._tick())
        if now_s >= self._repair_due_s:
            self._repair_due_s = now_s + self._settings.get(matching.PARTITION_CONFIG_CHECK_INTERVAL, self._scope)
            if not self._pushes.is_quiet and (self._repairing is None or self._repairing.done()):
                self._repairing = self._background.begin(self.repair())
        self._arm()


def _drain_reports(answers: Iterable[DescribeAnswer]) -> list[DrainReport]:
    return [answer.drain for answer in answers if answer.drain is not None]
