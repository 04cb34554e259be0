"""The page that tells what the tables of a lake say: self-contained, bounded, and safe whatever is in the data."""
