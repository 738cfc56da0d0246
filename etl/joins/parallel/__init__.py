"""The parallel window join: partition groups over slots, and the join inside a group; see README.md."""
