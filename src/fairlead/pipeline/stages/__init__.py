"""Small steps from DataFrame to DataFrame, one topic a module."""
