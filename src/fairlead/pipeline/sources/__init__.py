"""Sources of rows: the segments of the journal, as batches and as a stream, and Temporal Cloud's exports."""
