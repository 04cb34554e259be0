"""The language of schedule specs: calendars, intervals and cron expressions, and the times that they name."""
