"""Which prefixes have been in a prompt or an answer before, and whose."""

from collections.abc import Iterable, Sequence
from operator import indexOf


class SeenPrefixes:
    """The requests that named each prefix, as far as they are needed: the latest, and the latest of another.

    A request is looked up again while it waits; its own prompt is not an earlier request's.
    """

    def __init__(self, owners: "SeenPrefixes | None" = None) -> None:
        """Begin with no prefix; the indexes are those of `owners` where it is given."""
        self._latest: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._owner: list[tuple[int, str]] = owners._owner if owners else []

    def begin(self, owner: tuple[int, str]) -> int:
        """Return the index under which `owner`, a life and a request id, adds prefixes from now on."""
        self._owner.append(owner)
        return len(self._owner) - 1

    def owner(self, index: int) -> tuple[int, str]:
        """Return whose index it is: a life and a request id."""
        return self._owner[index]

    def add(self, identities: Iterable[int], index: int, asks_again: bool) -> None:
        """Note that the owner of `index` has the prefixes `identities`.

        Who else had them is kept only where the owner `asks_again`: it is of no use to others.
        """
        latest, owners = self._latest, self._owner
        if not asks_again:
            latest.update(dict.fromkeys(identities, index))
            return
        for identity in identities:
            known = latest.get(identity)
            if known is not None and owners[known] != owners[index]:
                self._before[identity] = known
            latest[identity] = index

    def find(self, identity: int, owner: tuple[int, str]) -> int | None:
        """Return the index of the latest other owner of `identity`; None: nobody else has had it."""
        index = self._latest.get(identity)
        if index is not None and self._owner[index] == owner:
            return self._before.get(identity)
        return index

    def find_last(self, identities: Sequence[int], owner: tuple[int, str], mix: int = 0) -> tuple[int, int] | None:
        """Return place and index of the last of `identities`, each xor `mix`, that another has had; None: none."""
        if mix:
            identities = [identity ^ mix for identity in identities]
        place = len(identities)
        while place:
            try:
                place -= 1 + indexOf(map(self._latest.__contains__, identities[place - 1 :: -1]), True)
            except ValueError:
                return None
            if (index := self.find(identities[place], owner)) is not None:
                return place, index
        return None
