"""Forms that end in a request."""
