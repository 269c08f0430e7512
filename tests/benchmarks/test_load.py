"""The load that servers are measured with: as long as it says, the same for all, shared only where it should be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from benchmarks.serving import load
from benchmarks.serving.load import NUM_TURNS, NUM_USERS, USER_TOKENS, ChatLoad, Passages, chat_load


class Words:
    """A tokenizer with a token per word."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split() if word.isdigit()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" {each}" for each in ids)


TEXT = " ".join(str(number) for number in range(30_000))


def passages(seed: int = 0) -> Passages:
    return Passages(Words(), TEXT, seed)


def test_passages_have_the_wanted_length_and_do_not_overlap() -> None:
    taken = passages()
    pieces = [taken.take(length) for length in (3, 50, 2000)]
    assert [len(piece.split()) for piece in pieces] == [3, 50, 2000]
    assert len({word for piece in pieces for word in piece.split()}) == 2053


def test_passages_begin_again_at_the_start_of_the_text() -> None:
    taken = Passages(Words(), "1 2 3 4 5", seed=3)
    assert {taken.take(2) for _ in range(9)} >= {"1 2", "3 4"}
    assert all(len(taken.take(2).split()) == 2 for _ in range(9))


def test_a_load_is_the_same_for_every_server_and_another_in_the_next_round() -> None:
    assert chat_load(passages(), 0) == chat_load(passages(), 0)
    assert chat_load(passages(1), 1).system != chat_load(passages(), 0).system


def test_users_share_the_system_prompt_and_nothing_else() -> None:
    made = chat_load(passages(), 0)
    assert (len(made.turns), {len(said) for said in made.turns}) == (NUM_USERS, {NUM_TURNS})
    assert made.num_requests == NUM_USERS * NUM_TURNS
    assert len({text for said in made.turns for text in said}) == made.num_requests
    least, most = USER_TOKENS
    for text in (text for said in made.turns for text in said):
        assert least - 6 <= len(Words().encode(text)) <= most - 6  # and the words of the question
    assert len(Words().encode(made.system)) == load.NUM_SYSTEM_TOKENS - 15


def test_a_conversation_holds_the_replies_that_came() -> None:
    talk = ChatLoad("be kind", [["hello", "and?"]])
    first = talk.first(0)
    assert [message["role"] for message in first] == ["system", "user"]
    second = talk.next(0, first, "hi")
    assert second is not None
    assert [message["content"] for message in second] == ["be kind", "hello", "hi", "and?"]
    assert talk.next(0, second, "bye") is None


@pytest.mark.parametrize("seed", range(3))
def test_questions_of_every_seed_fit_the_text(seed: int) -> None:
    assert all(text.split()[-1].isdigit() for said in chat_load(passages(seed), seed).turns for text in said)
