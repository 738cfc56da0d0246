"""Streams: models of how rows arrive."""
