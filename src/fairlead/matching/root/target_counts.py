"""The target number of partitions of a task queue, from the source that its settings choose."""

from fairlead.core.partitions import PartitionConfig, PartitionCounts
from fairlead.matching.root.state import CountsSource
from fairlead.settings import DynamicSettings, Scope, partition_counts
from fairlead.settings.dynamic import matching


class CountsGoal:
    """Decides the source of the partition counts, and the counts to move to."""

    def __init__(self, settings: DynamicSettings, scope: Scope) -> None:
        self._settings = settings
        self._scope = scope

    @property
    def is_from_settings(self) -> bool:
        """Whether the counts should come from the settings."""
        return not self._settings.get(matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE, self._scope)

    @property
    def settings_counts(self) -> PartitionCounts:
        """The counts in the settings, whether or not the settings are the source."""
        return partition_counts(self._settings, self._scope)

    def is_scaler_on(self, source: CountsSource) -> bool:
        """Whether the scaler decides the counts: not while the settings do, nor during the move to planned counts."""
        return self._is_scaler_wanted and source == CountsSource() and not self.is_from_settings

    def scaler_waits_for(self, source: CountsSource) -> str:
        """Why the scaler does not decide although it is switched on; empty if it decides or is switched off."""
        if not self._is_scaler_wanted or self.is_scaler_on(source):
            return ""
        if self.is_from_settings:
            return "the settings are the source of the counts"
        return "the counts of the database are not reached yet"

    def source(self, config: PartitionConfig, source: CountsSource) -> CountsSource:
        """The source that the settings ask for; keeps the counts of the database while the settings are the source."""
        if self.is_from_settings == source.is_settings:
            return source
        planned = config.counts if self.is_from_settings and source.planned is None else source.planned
        return CountsSource(self.is_from_settings, planned)

    def target(self, config: PartitionConfig, source: CountsSource) -> PartitionCounts:
        """The counts to move to."""
        return (self.settings_counts if source.is_settings else source.planned) or config.counts

    def is_reached(self, config: PartitionConfig, source: CountsSource) -> bool:
        """Whether the counts of the wanted source are in force."""
        wanted = self.source(config, source)
        return wanted == source and self.target(config, wanted) == config.counts

    def source_at(self, config: PartitionConfig, source: CountsSource) -> CountsSource:
        """The source when `config` is in force; planned counts are dropped when they are reached."""
        if source.is_settings or source.planned is None:
            return source
        # With the scaler on, reaching `write` is enough: the scaler itself lowers `read`.
        is_reached = config.counts == source.planned or (
            self._is_scaler_wanted and config.write == source.planned.write
        )
        return CountsSource() if is_reached else source

    @property
    def _is_scaler_wanted(self) -> bool:
        return self._settings.get(matching.ENABLE_ADAPTIVE_SCALER, self._scope)
