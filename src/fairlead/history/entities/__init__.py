"""State machines without a history of events: schedules, batch jobs, standalone activities and Nexus operations."""
