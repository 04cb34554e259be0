"""Schedules: workflow starts at the times of calendars and intervals."""
