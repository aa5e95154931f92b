"""The linked feature view."""
