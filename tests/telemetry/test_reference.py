from collections import Counter
from pathlib import Path

from fairlead.telemetry import METRICS, reference

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_metrics_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run the command at the top of docs/metrics.md"


def test_the_metrics_page_has_a_row_for_every_metric_with_all_its_names() -> None:
    page = reference()
    for metric in METRICS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{metric.name}`")]
        assert f"| {metric.kind} |" in row
        assert metric.about in row
        assert all(f"`{name}`" in row for name in metric.spellings)
        assert all(label in row for label in metric.labels)


def test_no_metric_name_is_declared_twice() -> None:
    names = Counter(name for metric in METRICS for name in metric.spellings)
    assert [name for name, count in names.items() if count > 1] == []
