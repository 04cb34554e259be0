"""The search attribute TemporalReportedProblems, which finds runs whose workflow tasks keep failing."""

from fairlead.history.events.transaction import Transaction


def report_problem(transaction: Transaction) -> None:
    """Set the attribute if enough workflow tasks in a row have failed, the last one included.

    The value is the problem of the last failure event: further attempts write no event, and don't change the value.
    """
    live = transaction.state.live
    failed_in_a_row, needed = live.task_attempt - 1, transaction.limits.reported_problems_tasks_min
    if not needed or failed_in_a_row < needed or live.reported_problems == live.task_problem:
        return
    live.reported_problems = live.task_problem
    transaction.show()
