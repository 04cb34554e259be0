"""Notifies loaded partitions of changed settings, with one subscription for all of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairlead.matching.partition.manager import FIXED_SETTINGS, RATE_SETTINGS, ROOT_SETTINGS, PartitionManager
from fairlead.settings import DynamicSettings, Scope


def follow_settings(
    settings: DynamicSettings, managers: Callable[[], Iterable[PartitionManager]]
) -> Callable[[], None]:
    """Call the managers whose settings change; the returned function ends the subscriptions."""

    def fixed() -> Iterator[tuple[Scope, Callable[[Any], None]]]:
        return ((manager.scope, manager.fixed_setting_changed) for manager in managers())

    def rates() -> Iterator[tuple[Scope, Callable[[Any], None]]]:
        return ((manager.scope, manager.rate_setting_changed) for manager in managers())

    def roots() -> Iterator[tuple[Scope, Callable[[Any], None]]]:
        return ((manager.scope, manager.root_setting_changed) for manager in managers())

    subscriptions = [
        settings.subscribe_scopes(FIXED_SETTINGS, fixed),
        settings.subscribe_scopes(RATE_SETTINGS, rates),
        settings.subscribe_scopes(ROOT_SETTINGS, roots),
    ]

    def end() -> None:
        for unsubscribe in subscriptions:
            unsubscribe()

    return end
