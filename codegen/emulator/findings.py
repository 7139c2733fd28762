# SPDX-License-Identifier: Apache-2.0
"""What the emulator finds: one fault, with the memory, the threads and the lines that it is about."""

from __future__ import annotations

from dataclasses import dataclass

MEANINGS = {
    "out_of_bounds": "an access outside of its array",
    "index_out_of_bounds": "an index past the end of an array",
    "misaligned": "an access at an address that is not a multiple of its size",
    "write_to_input": "a write to an input",
    "uninitialised": "a read of memory that nobody has written",
    "race": "two accesses that nothing orders",
    "unpublished": "a write that the copy engine or the tensor cores need not see",
    "divergent_barrier": "threads of one block at different barriers",
    "missed_barrier": "a barrier that some threads of the block never reach",
    "divergent_warp": "lanes of one mask at different warp operations",
    "deadlock": "threads that wait for each other",
    "undefined": "undefined behaviour",
    "time_limit": "the time limit passed",
    "crash": "a crash",
}
"""Every kind of finding."""

COPY_ENGINE = -2


@dataclass(frozen=True)
class Place:
    """A line of a kernel.

    Attributes:
        file: the header, or the template (where a line of it could be told, else its rendered text).
        line: the line there, from 1.
        rendered_line: the line of the complete rendered source; 0 when unknown.
    """

    file: str
    line: int
    rendered_line: int = 0

    def __str__(self) -> str:
        rendered = f" (rendered line {self.rendered_line})" if self.rendered_line else ""
        return f"{self.file}:{self.line}{rendered}"


@dataclass(frozen=True)
class Actor:
    """A thread at a place.

    Attributes:
        block: its block; -1 when unknown.
        thread: its number in the block; -1 when it is not known who it was, COPY_ENGINE when it was that.
        places: where it was, innermost first: what was inlined is followed by where.
    """

    block: int
    thread: int
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        others = {COPY_ENGINE: "the copy engine"}
        who = f"thread {self.thread}" if self.thread >= 0 else others.get(self.thread, "an unknown thread")
        block = f" of block {self.block}" if self.block >= 0 else ""
        at = f" at {self.places[0]}" if self.places else ""
        called = "".join(f", from {place}" for place in self.places[1:])
        return f"{who}{block}{at}{called}"


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        kind: a key of MEANINGS.
        detail: a few words more.
        kernel: the kernel that ran.
        array: name of the array it is about: an argument's, a `__shared__` variable's, or "shared" for
            dynamic shared memory; empty if it is about none.
        offset: bytes from the array's start; may lie outside of it.
        array_bytes: the array's size.
        bytes: the access's size; 0 for none.
        write: whether the access writes.
        actor: who did it.
        other: the second thread of a race or a divergence.
    """

    kind: str
    detail: str
    kernel: str
    array: str
    offset: int
    array_bytes: int
    bytes: int
    write: bool
    actor: Actor
    other: Actor | None = None

    @property
    def place(self) -> Place | None:
        """The innermost line; None when it is not known."""
        return self.actor.places[0] if self.actor.places else None

    def __str__(self) -> str:
        words = [f"{self.kind}: {MEANINGS.get(self.kind, self.kind)}"]
        if self.detail:
            words.append(f" ({self.detail})")
        if self.bytes:
            words.append(f": {'write' if self.write else 'read'} of {self.bytes} bytes")
        if self.array:
            words.append(f" at byte {self.offset} of {self.array!r} ({self.array_bytes} bytes)")
        words.append(f", {self.kernel or 'no kernel'}, {self.actor}")
        if self.other is not None:
            words.append(f"; the other: {self.other}")
        return "".join(words)
