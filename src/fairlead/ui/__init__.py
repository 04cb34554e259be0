"""The web page: built pages of Temporal's own web UI, from a folder, with the API that they need."""
