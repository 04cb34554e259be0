"""The history service: the states of workflow runs, and the events by which requests and commands change them."""
