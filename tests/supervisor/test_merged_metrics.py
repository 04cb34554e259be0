"""One page of metrics for several processes."""

from fairlead.supervisor.merged_metrics import merged

PAGE = """\
# HELP service_requests Calls.
# TYPE service_requests counter
service_requests{service_name="frontend",operation="a {b} \\"c\\""} 3
# HELP shards Shards that this host owns.
# TYPE shards gauge
shards 7
# HELP latency Seconds.
# TYPE latency histogram
latency_bucket{le="0.1"} 1
latency_sum{} 0.5
latency_count 1
"""


def test_series_of_a_metric_stay_together_and_have_the_label_of_their_process() -> None:
    page = merged({"0": PAGE, "1": PAGE.replace("shards 7", "shards 8")}).decode()
    assert page.splitlines() == [
        "# HELP service_requests Calls.",
        "# TYPE service_requests counter",
        'service_requests{process="0",service_name="frontend",operation="a {b} \\"c\\""} 3',
        'service_requests{process="1",service_name="frontend",operation="a {b} \\"c\\""} 3',
        "# HELP shards Shards that this host owns.",
        "# TYPE shards gauge",
        'shards{process="0"} 7',
        'shards{process="1"} 8',
        "# HELP latency Seconds.",
        "# TYPE latency histogram",
        'latency_bucket{process="0",le="0.1"} 1',
        'latency_sum{process="0"} 0.5',
        'latency_count{process="0"} 1',
        'latency_bucket{process="1",le="0.1"} 1',
        'latency_sum{process="1"} 0.5',
        'latency_count{process="1"} 1',
    ]


def test_without_processes_the_page_is_empty() -> None:
    assert merged({}) == b""
