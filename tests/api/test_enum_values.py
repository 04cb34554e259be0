"""Cached values of the API's enums."""

from temporalio.api.enums.v1 import EventType

from fairlead.api.enum_values import cache_enum_values


def test_cached_values_are_the_enums_own() -> None:
    cache_enum_values()
    values = dict(EventType.items())
    assert values["EVENT_TYPE_TIMER_FIRED"]
    assert {name: vars(EventType)[name] for name in values} == values
    assert {name: getattr(EventType, name) for name in values} == values
