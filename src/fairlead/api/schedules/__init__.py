"""Schedule specs: calendars, intervals and cron expressions, and the times that they match."""
