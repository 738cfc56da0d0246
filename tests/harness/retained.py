"""How many bytes of rows and arrays an object really holds, found by walking what can be reached from it.

An independent witness against an operator's own count. Ports (the run store, relations) belong to whoever handed them
in and are not walked; code, modules and schemas are not data.
"""

from __future__ import annotations

import gc
import types

import numpy as np
import pyarrow as pa

from etl.joins import JoinPlan, Ports
from etl.storage.block_table import BlockTable
from etl.storage.relation import Relation

_CODE = (type, types.ModuleType, types.FunctionType, types.CodeType, types.MethodType)
_NOT_DATA = (*_CODE, JoinPlan, Ports, Relation, pa.Schema)


def retained_bytes(root: object) -> int:
    buffers: dict[int, int] = {}
    # By identity, and kept alive: the number of an object that has gone is given to another one.
    seen: dict[int, object] = {}
    waiting: list[object] = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _NOT_DATA):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, BlockTable):
            # Without copies of its own it is the relation's, shared by all who look at the version.
            waiting.extend([thing._pinned, thing._columns] if thing._pinned else [])
            continue
        if isinstance(thing, np.ndarray):
            owner = thing
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            buffers[owner.__array_interface__["data"][0]] = owner.nbytes
        elif isinstance(thing, pa.RecordBatch | pa.Table):
            waiting.extend(thing.columns)
        elif isinstance(thing, pa.ChunkedArray):
            waiting.extend(thing.chunks)
        elif isinstance(thing, pa.Array):
            for buffer in thing.buffers():
                if buffer is not None:
                    buffers[buffer.address] = max(buffers.get(buffer.address, 0), buffer.size)
        elif isinstance(thing, bytes | bytearray):
            buffers[id(thing)] = len(thing)
        else:
            waiting.extend(gc.get_referents(thing))
    return sum(buffers.values())
