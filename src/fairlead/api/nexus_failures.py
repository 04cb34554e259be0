"""Failures of Nexus operations in requests."""

import json

from temporalio.api.nexus.v1 import Failure as NexusFailure

# Error text for a Nexus task that is unknown or has expired.
TASK_NOT_FOUND = "Nexus task not found or already expired"


def are_details_json(wanted: NexusFailure) -> bool:
    """Whether the failure's details are empty or valid JSON, so that they can be stored."""
    if not wanted.details:
        return True
    try:
        json.loads(wanted.details)
    except (ValueError, RecursionError):
        return False
    return True
