"""The planner's C library, one private copy for each episode: its state is global.

Each copy is loaded from a separate file, since the loader recognises a file, and a name, that it has already loaded.
The file is in memory, because many containers do not allow execution from their disk; its name is a link to it. Only
the part that the loader maps is copied (1 MB of 34 MB: the rest is debug information). File and link are removed at
once, and copies are reused after an episode's end.
"""

import ctypes
import os
import struct
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Final

import fast_downward.interface

_MAX_NAME_BYTES: Final = 1024
_ELF64_LITTLE: Final = b"\x7fELF\x02\x01"
_SECTION_TABLE_OFFSET: Final = 40
_SECTION_TABLE_FIELDS: Final = 58
_LOAD: Final = 1


class _Operator(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("name", ctypes.c_char * _MAX_NAME_BYTES),
        ("num_effects", ctypes.c_int),
    )


class _Atom(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * _MAX_NAME_BYTES),)


Operator = tuple[int, bytes, int]
"""Id, name with arguments, number of effects."""


class Planner:
    """One copy of the library, with the state of one game."""

    def __init__(self) -> None:
        with (
            os.fdopen(os.memfd_create("downward"), "wb") as file,
            tempfile.TemporaryDirectory(prefix="downward-") as directory,
        ):
            file.write(_loadable_part())
            file.flush()
            name = Path(directory, "library.so")
            name.symlink_to(f"/proc/self/fd/{file.fileno()}")
            self._lib = ctypes.CDLL(str(name))
        self._lib.load_sas.argtypes = (ctypes.c_char_p,)
        self._lib.load_sas.restype = None
        self._lib.cleanup.restype = None
        self._lib.get_applicable_operators.argtypes = (ctypes.POINTER(_Operator),)
        self._lib.get_applicable_operators.restype = None
        self._lib.get_state.argtypes = (ctypes.POINTER(_Atom),)
        self._lib.get_state.restype = None
        self._lib.apply_operator.argtypes = (ctypes.c_int, ctypes.POINTER(_Atom))
        self._lib.check_goal.restype = ctypes.c_bool
        self._operators = (_Operator * 64)()
        self._atoms = (_Atom * 16)()

    def load(self, sas: bytes) -> None:
        """Start a game in its first state."""
        self._lib.load_sas(sas)

    def unload(self) -> None:
        """Forget the game and free its memory."""
        self._lib.cleanup()

    def atoms(self) -> list[bytes]:
        """Return each atom, as `Atom name(a, b)` if it holds now, or else as `NegatedAtom name(a, b)`."""
        atoms = (_Atom * self._lib.get_state_size())()
        self._lib.get_state(atoms)
        return [atom.name for atom in atoms]

    def operators(self) -> list[Operator]:
        """Return the operators that can be applied now."""
        count = self._lib.get_applicable_operators_count()
        if count > len(self._operators):
            self._operators = (_Operator * (2 * count))()
        self._lib.get_applicable_operators(self._operators)
        return [(item.id, item.name, item.num_effects) for item in self._operators[:count]]

    def apply(self, operator: Operator) -> list[bytes]:
        """Apply an operator; return the atoms that it sets."""
        number, _, num_effects = operator
        if num_effects > len(self._atoms):
            self._atoms = (_Atom * num_effects)()
        self._lib.apply_operator(number, self._atoms)
        return [atom.name for atom in self._atoms[:num_effects]]

    def at_goal(self) -> bool:
        """Whether the goal holds now."""
        return bool(self._lib.check_goal())


class PlannerPool:
    """Copies that no episode uses. It never shrinks: the loader does not unload this library."""

    def __init__(self) -> None:
        self._idle: list[Planner] = []
        self._lock = threading.Lock()

    def take(self) -> Planner:
        """Return a copy without a game."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Planner()

    def give_back(self, planner: Planner) -> None:
        """Unload a copy's game and keep the copy for the next episode."""
        planner.unload()
        with self._lock:
            self._idle.append(planner)


@lru_cache(maxsize=1)
def _loadable_part() -> bytes:
    """Return the file up to the end of its last loaded segment, without a section table."""
    whole = Path(os.fspath(fast_downward.interface.DOWNWARD_LIB_PATH)).read_bytes()
    if not whole.startswith(_ELF64_LITTLE):
        return whole
    (table,) = struct.unpack_from("<Q", whole, 32)
    entry_size, num_entries = struct.unpack_from("<HH", whole, 54)
    end = 0
    for index in range(num_entries):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", whole, table + index * entry_size)
        if kind == _LOAD:
            end = max(end, offset + size)
    part = bytearray(whole[:end])
    struct.pack_into("<Q", part, _SECTION_TABLE_OFFSET, 0)
    struct.pack_into("<HHH", part, _SECTION_TABLE_FIELDS, 0, 0, 0)
    return bytes(part)
