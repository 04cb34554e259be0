"""Dynamic settings: their declarations, the settings file, and the values in force while the server runs."""
