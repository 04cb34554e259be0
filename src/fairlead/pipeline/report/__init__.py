"""The report page on the tables of a lake: self-contained, bounded in size, and safe with any data."""
