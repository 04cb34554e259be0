"""Schedules: workflows that are started when the time comes, by calendars and intervals."""
