"""Joins of two finite streams that deliver results from the first row on."""
