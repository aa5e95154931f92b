"""Merge methods and transforms: one pure function a file, registered by a row of the catalog."""
