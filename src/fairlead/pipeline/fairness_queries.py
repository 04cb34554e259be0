"""Queries on the tables of the job `fairness`, for its findings and for the report."""

# The starved keys, each with the totals of its windows, the worst first.
STARVED = """
    SELECT cluster, namespace_id, task_list, task_type, fairness_key,
           count(*) AS windows, sum(fair - dispatched) AS tasks_missed
    FROM fairness_keys WHERE is_starved GROUP BY ALL
    ORDER BY sum(fair - dispatched) DESC, cluster, namespace_id, task_list, task_type, fairness_key
"""
# The floods that have victims, each with the totals of its windows, the worst first. A victim missed `$missed_min`
# tasks or more.
FLOODS = """
    WITH flooded AS (
        SELECT cluster, namespace_id, task_list, task_type, window_us, flood_key, flood_tasks
        FROM fairness WHERE flood_key IS NOT NULL
    ), missed AS (
        SELECT cluster, namespace_id, task_list, task_type, flood_key, fairness_key, sum(fair - dispatched) AS missed
        FROM fairness_keys JOIN flooded USING (cluster, namespace_id, task_list, task_type, window_us)
        WHERE is_starved GROUP BY ALL
    ), victims AS (
        SELECT cluster, namespace_id, task_list, task_type, flood_key,
               count(*) AS victims, sum(missed) AS tasks_missed
        FROM missed WHERE missed >= $missed_min GROUP BY ALL
    ), floods AS (
        SELECT cluster, namespace_id, task_list, task_type, flood_key,
               count(*) AS windows, sum(flood_tasks) AS tasks_beyond_due,
               min(window_us) AS first_us, max(window_us) AS last_us
        FROM flooded GROUP BY ALL
    )
    FROM floods JOIN victims USING (cluster, namespace_id, task_list, task_type, flood_key)
    ORDER BY tasks_missed DESC, cluster, namespace_id, task_list, task_type, flood_key LIMIT $count
"""
