"""The hosts: they run operators inside Spark, one operator per partition group."""
