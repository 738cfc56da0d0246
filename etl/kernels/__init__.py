"""Compiled kernels: hashing, hash tables, sorted probes, merges and scatters over NumPy arrays.

Everything here works on whole arrays and knows nothing of joins, storage or Spark. Iterators of index pairs
come in bounded chunks, so one skewed key cannot exhaust memory. Equal hashes only nominate a pair:
`compare.equal_rows` decides, unless `hashing.proves_equality` says that the hash already has.

Each kernel has one compiled form, kept in a cache beside the source: the first import after an installation
compiles for some seconds, later ones load.
"""
