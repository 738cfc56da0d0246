"""Headrace's engine: kernels, storage, joins, transforms, and the Spark hosts that run them."""
