"""``octavo demo``: what the KV cache saves, measured with a real model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.cli.options import Debug, Isa, ModelArgument, Threads, given
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.cli.reply import Reply
    from octavo.engine.sampling_params import SamplingParams
    from octavo.llm import LLM

_SYSTEM = "You are a helpful assistant. Answer briefly."
_TEXT = """\
Honey bees live together in a hive. A hive in summer is home to one queen, a few hundred drones and as many as \
fifty thousand workers. The queen lays the eggs, up to two thousand on a warm day. The drones are the males. The \
workers are females, and they do everything else: they clean the hive, feed the young, build the comb out of wax, \
guard the entrance, and fly out to collect food.

A worker visits between fifty and a hundred flowers on one trip. She drinks nectar and carries it home in a \
special stomach. In the hive she passes it on to other workers, who dry it by fanning it with their wings until it \
has become honey. She also collects pollen, which she packs into small baskets on her back legs. While she goes \
from flower to flower some of the pollen is left behind, and so the plants can make seeds. Many of the fruits and \
vegetables that people eat, such as apples, almonds and pumpkins, depend on bees.

When a worker has found a good place with many flowers, she tells the others with a dance. The direction of the \
dance shows which way to fly, seen from the sun, and its length shows how far it is. In winter the bees do not \
sleep. They gather around the queen in a tight ball, shiver to keep warm, and live on the honey that they stored.\
"""
_FIRST_QUESTION = "What is this text about? Answer in one sentence."
_QUESTIONS = ("Who lays the eggs in the hive?", "What do bees make from nectar?")
_LONG_QUESTION = "What do the workers do?"
_REPLY_TOKENS = 64
_RACE_TOKENS = 128
_RACE_SECONDS = 35.0
"""How long the run without a cache may take."""


def demo(model: ModelArgument = None, threads: Threads = None, isa: Isa = None, debug: Debug = False) -> None:
    """Show what the KV cache saves, with and without it.

    A short chat, and one longer reply, each computed twice. Takes under two minutes on two processors with the
    embedded model. Fails if a reply with the cache differs from the one without.
    """
    from octavo.cli.reply import write_now
    from octavo.cli.starting import open_llm

    with open_llm(model, given(threads=threads, isa=isa)) as llm:
        write_now(f"{llm.summary}\n\nA chat about a text. Every turn sends the text and all that was said again.\n")
        _warm_up(llm)
        messages = [{"role": "system", "content": _SYSTEM}]
        opening = f"Here is a text about honey bees.\n\n{_TEXT}\n\n{_FIRST_QUESTION}"
        turns = [_turn(llm, messages, opening, f"(a text about honey bees) {_FIRST_QUESTION}")]
        turns += [_turn(llm, messages, question, question) for question in _QUESTIONS]
        write_now("\nOne longer reply, with the cache and without it, comes next.\n\n")
        messages.append({"role": "user", "content": _LONG_QUESTION})
        race = _race(llm, messages)
    _show(turns, race)
    for pair in (*turns, race):
        pair.check()
    print("Every reply was computed both ways: text, tokens and log-probabilities are identical, bit for bit.")


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same request twice: once as the cache serves it, once computed afresh."""

    cached: Reply
    afresh: Reply

    @property
    def seconds_saved(self) -> float:
        """Until the first token."""
        return _first_token(self.afresh) - _first_token(self.cached)

    @property
    def factor(self) -> float:
        return _total(self.afresh) / _total(self.cached)

    def check(self) -> None:
        """Raise OctavoError unless both are the same, to the last bit of every token's log-probability."""
        one, other = self.cached.output.outputs[0], self.afresh.output.outputs[0]
        if (one.text, one.token_ids, one.logprobs) != (other.text, other.token_ids, other.logprobs):
            raise OctavoError(f"a reply with the cache differs from the one without: {one.text!r} and {other.text!r}")


def _turn(llm: LLM, messages: list[dict[str, str]], question: str, shown: str) -> _Pair:
    """Ask, show the reply, and ask once more without reading the cache. The reply joins the conversation."""
    from octavo.cli.reply import write_now

    messages.append({"role": "user", "content": question})
    params = _params(max_tokens=_REPLY_TOKENS)
    write_now(f"\nyou:    {shown}\nmodel:  ")
    cached = _reply(llm, messages, params, write_now)
    write_now("\n")
    # What this run computes is what the cache holds already, so it changes nothing for the turns to come.
    afresh = _reply(llm, messages, replace(params, skip_reading_prefix_cache=True))
    messages.append({"role": "assistant", "content": cached.text})
    return _Pair(cached, afresh)


def _race(llm: LLM, messages: list[dict[str, str]]) -> _Pair:
    """One reply, with every token computed again at every step, and the same reply with the cache.

    A slow machine gets as many tokens as it computes in the time there is.
    """
    from octavo.cli.progress import token_progress

    params = _params(max_tokens=_RACE_TOKENS, ignore_eos=True)
    done = 0
    with token_progress(f"one reply without a cache, {_RACE_SECONDS:.0f} s at most") as report:

        def count(_: str) -> None:
            nonlocal done
            done += 1
            report(done, _RACE_TOKENS)

        # Without the cache nothing is shared either, so this run leaves nothing behind for the other.
        afresh = _reply(llm, messages, replace(params, use_cache=False), count, timeout=_RACE_SECONDS)
    if not afresh.num_output_tokens:
        raise OctavoError(
            f"without a cache this machine computes no token in {_RACE_SECONDS:.0f} s; give it a smaller model"
        )
    cached = _reply(llm, messages, replace(params, max_tokens=afresh.num_output_tokens))
    return _Pair(cached, afresh)


def _warm_up(llm: LLM) -> None:
    """Touch the weights once, so that the first turn is not charged for it."""
    _reply(llm, [{"role": "user", "content": "Hello"}], _params(max_tokens=2, use_cache=False))


def _reply(
    llm: LLM,
    messages: list[dict[str, str]],
    params: SamplingParams,
    write: Callable[[str], object] = lambda text: None,
    timeout: float | None = None,
) -> Reply:
    from octavo.cli.reply import stream_reply
    from octavo.engine.intake import as_prompt

    reply = stream_reply(llm, as_prompt(llm.render(messages)), params, write, timeout=timeout)
    assert reply is not None  # only an interrupted reply may be missing, and here an interrupt ends the demo
    return reply


def _params(**changes: Any) -> SamplingParams:
    from octavo.engine.sampling_params import SamplingParams

    return SamplingParams(temperature=0.0, logprobs=0, **changes)


def _first_token(reply: Reply) -> float:
    return reply.time_to_first_token or 0.0


def _total(reply: Reply) -> float:
    return reply.output.metrics.total_time or 0.0


def _show(turns: list[_Pair], race: _Pair) -> None:
    from rich.console import Console
    from rich.table import Table

    chat = Table(title="1. The chat: time to the first token of each reply", title_justify="left")
    for name in ("turn", "prompt", "reused", "computed", "with cache", "without", "saved"):
        chat.add_column(name, justify="right")
    for number, turn in enumerate(turns, 1):
        reply = turn.cached
        chat.add_row(
            str(number),
            f"{reply.num_prompt_tokens} tokens",
            f"{reply.num_cached_tokens}",
            f"{reply.num_computed_tokens}",
            f"{_first_token(reply):.3f} s",
            f"{_first_token(turn.afresh):.3f} s",
            f"{turn.seconds_saved:.3f} s" if reply.num_cached_tokens else "nothing yet",
        )
    one = Table(
        title=f"2. One reply of {race.cached.num_output_tokens} tokens to a prompt of {race.cached.num_prompt_tokens}",
        title_justify="left",
    )
    for name in ("", "whole reply", "per token"):
        one.add_column(name, justify="right")
    for name, reply in (("with the cache", race.cached), ("without", race.afresh)):
        per_token = _total(reply) / reply.num_output_tokens
        one.add_row(name, f"{_total(reply):.2f} s", f"{per_token * 1000:.1f} ms")
    console = Console()
    console.print(chat, one, sep="\n\n")
    console.print(_in_words(turns, race), highlight=False)


def _in_words(turns: list[_Pair], race: _Pair) -> str:
    last = turns[-1]
    return (
        f"\nA chat sends its whole history with every turn. In turn {len(turns)} the model had seen "
        f"{last.cached.num_cached_tokens} of {last.cached.num_prompt_tokens} tokens before; Octavo kept their keys "
        f"and values and computed only {last.cached.num_computed_tokens}, so the reply began "
        f"{_first_token(last.afresh) / _first_token(last.cached):.1f} times sooner.\n"
        f"Without any cache every new token costs the whole conversation again: {race.factor:.0f} times slower here."
    )
