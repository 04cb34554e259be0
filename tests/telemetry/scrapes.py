"""Scrapes, parsed with the Prometheus client library."""

from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fairlead.telemetry import Metrics, render

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def families_of(content: bytes, *, is_openmetrics: bool) -> dict[str, Family]:
    parse = parse_openmetrics if is_openmetrics else parse_text
    found = list(parse(content.decode()))
    names = [family.name for family in found]
    assert len(names) == len(set(names)), "a metric occurs twice"
    return {family.name: family for family in found}


def scrape(metrics: Metrics) -> Series:
    """All series by name and labels; each may occur only once."""
    _, content = render(metrics.snapshot(), OPENMETRICS)
    found: Series = {}
    for family in families_of(content, is_openmetrics=True).values():
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    """The value of the only series with this name and these labels; it may have other labels too."""
    (found,) = [one for (of, has), one in series.items() if of == name and labels.items() <= dict(has).items()]
    return found


def values(series: Series, name: str, **labels: str) -> list[float]:
    """The values of all series with this name and these labels."""
    return [one for (of, has), one in series.items() if of == name and labels.items() <= dict(has).items()]
