"""Window joins: rows of two sides meet if their keys are equal and their event times are close enough."""
