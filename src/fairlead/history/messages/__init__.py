"""Messages of the history service: requests and responses that cross hosts and clusters."""
