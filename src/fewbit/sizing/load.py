"""The load: clients that ask, wait for the answer, think, and ask again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ..errors import ArgumentError

Span = tuple[int, int]  # from, to; all numbers between are as likely


@dataclass(frozen=True)
class ClientLoad:
    """A closed loop: each client has one request at a time.

    Args:
        clients: Number of clients.
        prompt_tokens: Tokens of a prompt, its shared prefix included.
        output_tokens: Tokens of an answer.
        think_seconds: Mean time between an answer and the client's next request; exponentially distributed.
        shared_tokens: Tokens with which the prompts of a group begin alike.
        groups: Groups of clients with a shared prefix.
        requests: Requests of each client.
        stagger: Clients begin one after the other, as in a system that runs already, not all at once.
        seed: Of all that is random.
    """

    clients: int
    prompt_tokens: Span = (512, 512)
    output_tokens: Span = (128, 128)
    think_seconds: float = 0.0
    shared_tokens: int = 0
    groups: int = 1
    requests: int = 4
    stagger: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "groups", "requests"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ArgumentError(f"{name} must be a span of at least 1, such as 100-200, got {low}-{high}")
        if not 0 <= self.shared_tokens < self.prompt_tokens[0]:
            raise ArgumentError(f"shared_tokens must be below the shortest prompt, got {self.shared_tokens}")
        if not 0 <= self.think_seconds < float("inf"):
            raise ArgumentError(f"think_seconds must be a number of at least 0, got {self.think_seconds}")


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request on its way.

    Args:
        client: Who asks.
        prompt: Tokens of its prompt; those written before, too, when it was preempted.
        output: Tokens that it writes.
        group: Whose prefix it begins with.
        shared: Tokens of that prefix.
        arrival: When it came.
    """

    client: int
    prompt: int
    output: int
    group: int
    shared: int
    arrival: float
    computed: int = 0  # tokens of the prompt in the cache
    written: int = 0  # tokens of the whole answer
    last_step: int = 0  # of its replica, in which it writes its last token
    first_time: float = 0.0
    finish_time: float = 0.0
    order: int = 0  # of arrival


class Clients:
    """Makes the requests of a load."""

    def __init__(self, load: ClientLoad) -> None:
        self._load, self._random = load, Random(load.seed)
        self._left = [load.requests] * load.clients
        self._count = 0

    def starts(self, cycle_seconds: float) -> list[float]:
        """When each client begins."""
        spread = (cycle_seconds + self._load.think_seconds) if self._load.stagger else 0.0
        return [self._random.random() * spread for _ in range(self._load.clients)]

    def ask(self, client: int, now: float) -> SimulatedRequest | None:
        """The next request of a client, if it has one."""
        if not self._left[client]:
            return None
        self._left[client] -= 1
        self._count += 1
        load = self._load
        lengths = Random(hash((load.seed, client, self._left[client])))  # the same in whatever order clients ask
        prompt, output = lengths.randint(*load.prompt_tokens), lengths.randint(*load.output_tokens)
        group = client % load.groups
        return SimulatedRequest(
            client, prompt, output, group, load.shared_tokens, now, written=output, order=self._count
        )

    def think(self) -> float:
        mean = self._load.think_seconds
        return self._random.expovariate(1 / mean) if mean else 0.0
