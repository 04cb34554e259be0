"""Small steps from DataFrame to DataFrame, one topic per module."""
