"""The warehouse: schema, the frozen packages it is loaded from, quality gate, loader, inspection by SQL."""
