"""Durable files, sealed runs and the lookup store: ports, their files on disk, and in-memory fakes."""
