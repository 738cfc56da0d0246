"""Joins of a stream with a disk-resident relation."""
