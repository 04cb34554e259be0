"""Where rows come from: the segments of the journal, in batches and as a stream."""
