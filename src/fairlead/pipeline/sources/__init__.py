"""Where rows come from: the journal, in batches and as a stream."""
