"""Search attributes, and the language of list filters."""
