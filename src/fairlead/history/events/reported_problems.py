"""The search attribute TemporalReportedProblems, by which users find runs whose workflow tasks keep failing."""

from fairlead.history.events.transaction import Transaction


def report_problem(transaction: Transaction) -> None:
    """Set the attribute if enough consecutive workflow tasks have failed, including the last workflow task.

    The value describes the last failure event. Further attempts write no event, and so don't change it.
    """
    live = transaction.state.live
    failed_in_a_row, needed = live.task_attempt - 1, transaction.limits.reported_problems_tasks_min
    if not needed or failed_in_a_row < needed or live.reported_problems == live.task_problem:
        return
    live.reported_problems = live.task_problem
    transaction.show()
