"""Equal buffers, allocated and touched once, off the training thread: a copy into fresh memory is several times slower."""

import threading


class Buffer:
    """Bytes that several senders may hold at once; the last release gives them back."""

    def __init__(self, pool: "BufferPool", size: int) -> None:
        self.data = bytearray(size)
        self._pool = pool
        self._holders = 0

    @property
    def view(self) -> memoryview:
        return memoryview(self.data)

    def hold(self) -> None:
        with self._pool.lock:
            self._holders += 1

    def release(self) -> None:
        with self._pool.lock:
            self._holders -= 1
            if self._holders == 0:
                self._pool.free.append(self)


class BufferPool:
    """Thread-safe. Grows when all are in use; how many may be in use is the owner's rule."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.lock = threading.Lock()
        self.free: list[Buffer] = []

    def reserve(self, count: int) -> None:
        """Have at least so many free."""
        with self.lock:
            missing = count - len(self.free)
        made = [Buffer(self, self._size) for _ in range(missing)]
        with self.lock:
            self.free.extend(made)

    def take(self) -> Buffer:
        """Held once by the caller."""
        with self.lock:
            buffer = self.free.pop() if self.free else None
        buffer = buffer or Buffer(self, self._size)
        buffer.hold()
        return buffer
