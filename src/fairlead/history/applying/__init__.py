"""Other clusters' histories: how their batches of events become part of the runs here."""
