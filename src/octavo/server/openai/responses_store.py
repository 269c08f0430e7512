"""ResponseStore: responses that clients may come back to, for each tenant apart, in memory and bounded."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from octavo.server.errors import ApiError, ErrorKind
from octavo.server.openai.responses_items import Item

_RECORD_BYTES = 600
_ID_BYTES = 250
"""About what a record, and an id in the index, take beside their bytes."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response and the input it answers; what came before is its parent's.

    So a conversation of any length is kept once, however many responses go on with it. Kept as JSON, which takes a
    tenth of what its values would, and whose size is known.

    Attributes:
        parent: the response it goes on with.
        body: the response as the client got it.
        input: the items of its own input.
        item_ids: of input and output.
    """

    id: str
    parent: str | None
    body: bytes
    input: bytes
    item_ids: tuple[str, ...]

    @classmethod
    def of(cls, body: dict[str, Any], items: list[Item]) -> StoredResponse:
        ids = tuple(item["id"] for item in [*items, *body["output"]])
        return cls(body["id"], body["previous_response_id"], _encoded(body), _encoded(items), ids)

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.input) + _RECORD_BYTES + _ID_BYTES * len(self.item_ids)

    def input_items(self) -> list[Item]:
        items: list[Item] = json.loads(self.input)
        return items

    def output_items(self) -> list[Item]:
        items: list[Item] = json.loads(self.body)["output"]
        return items


class ResponseStore:
    """Keeps responses. Lives on the event loop, so it needs no lock; what it returns never changes.

    When a tenant has too many, those go that were not gone on with for longest. Another tenant's response cannot be
    told from one that never was.

    Args:
        max_responses: of one tenant.
        max_bytes: of one tenant.
    """

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}

    def put(self, tenant: str, response: StoredResponse) -> None:
        """Keep ``response``, and let go of others where there is no room."""
        shelf = self._shelves.setdefault(tenant, _Shelf())
        shelf.add(response)
        while shelf.responses and (len(shelf.responses) > self._max_responses or shelf.num_bytes > self._max_bytes):
            shelf.remove(next(iter(shelf.responses)))
        self._drop_empty(tenant)

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """
        Raises:
            ApiError: there is none of this id (404).
        """
        response = self._shelf(tenant).responses.get(response_id)
        if response is None:
            raise ApiError(ErrorKind.NOT_FOUND, f"there is no response {response_id!r}", code="response_not_found")
        return response

    def has(self, tenant: str, response_id: str) -> bool:
        """Whether :meth:`get` would find it."""
        return response_id in self._shelf(tenant).responses

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response. What goes on with it cannot be gone on with any more. Raises as :meth:`get`."""
        self.get(tenant, response_id)
        self._shelf(tenant).remove(response_id)
        self._drop_empty(tenant)

    def chain(self, tenant: str, response_id: str) -> list[StoredResponse]:
        """The conversation that ends with this response, its beginning first.

        Raises:
            ApiError: it is not stored, or the beginning of it is not any more (404).
        """
        responses = self._shelf(tenant).responses
        chain: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            if wanted not in responses:
                raise _broken(response_id, wanted)
            chain.append(responses[wanted])
            wanted = chain[-1].parent
        chain.reverse()
        for response in chain:
            responses.move_to_end(response.id)
        return chain

    def with_item(self, tenant: str, item_id: str) -> StoredResponse | None:
        """A response that has an item of this id in its input or output."""
        shelf = self._shelf(tenant)
        holders = shelf.holders.get(item_id)
        return shelf.responses[holders[0]] if holders else None

    def _shelf(self, tenant: str) -> _Shelf:
        return self._shelves.get(tenant, _EMPTY)

    def _drop_empty(self, tenant: str) -> None:
        if not self._shelves[tenant].responses:
            del self._shelves[tenant]


@dataclass(slots=True)
class _Shelf:
    """What is one tenant's. ``responses``: the one to go first is first."""

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    holders: dict[str, list[str]] = field(default_factory=dict)
    num_bytes: int = 0

    def add(self, response: StoredResponse) -> None:
        self.responses[response.id] = response
        self.num_bytes += response.num_bytes
        for item_id in response.item_ids:
            self.holders.setdefault(item_id, []).append(response.id)

    def remove(self, response_id: str) -> None:
        response = self.responses.pop(response_id)
        self.num_bytes -= response.num_bytes
        for item_id in response.item_ids:
            holders = self.holders[item_id]
            holders.remove(response_id)
            if not holders:
                del self.holders[item_id]


_EMPTY = _Shelf()


def _broken(response_id: str, missing: str) -> ApiError:
    if missing == response_id:
        message = f"there is no response {response_id!r} to go on with; it was not stored, or is not any more"
    else:
        message = (
            f"the conversation of {response_id!r} has lost its beginning: {missing!r} is not stored any more. "
            "Send the whole conversation as input"
        )
    return ApiError(ErrorKind.NOT_FOUND, message, param="previous_response_id", code="previous_response_not_found")


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), check_circular=False).encode("ascii")
