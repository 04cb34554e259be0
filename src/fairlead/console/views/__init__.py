"""The views of the console, one module for each topic; `VIEWS` is the table of all of them."""

from typing import Final

from fairlead.console.view import View
from fairlead.console.views import (
    audit,
    branches,
    clusters,
    deployment,
    failover,
    fairness,
    home,
    keys,
    namespaces,
    report,
    ring,
    scaler,
    schedule,
    schedules,
    settings,
    stuck,
    task_queue,
    task_queues,
    workers,
    workflow,
    workflows,
)

# In the order of the navigation. Never give the path of an old view to another view: bookmarks and links would change
# their meaning.
VIEWS: Final[tuple[View, ...]] = (
    home.VIEW,
    workflows.VIEW,
    workflow.VIEW,
    stuck.VIEW,
    task_queues.VIEW,
    task_queue.VIEW,
    fairness.VIEW,
    scaler.VIEW,
    schedules.VIEW,
    schedule.VIEW,
    workers.VIEW,
    deployment.VIEW,
    clusters.VIEW,
    failover.VIEW,
    branches.VIEW,
    ring.VIEW,
    report.VIEW,
    namespaces.VIEW,
    settings.VIEW,
    keys.VIEW,
    audit.VIEW,
)

# The name of the first view in addresses that need one, such as /console/home.json.
HOME: Final = "home"
