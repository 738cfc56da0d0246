"""What the hybrid join is for: surrogate keys, duplicates, codes, new rows. Each takes a load's rows and a relation."""
