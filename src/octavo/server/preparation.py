"""Preparation: from a request to what the engine computes: rendered, held to its format, tokenised, marked.

All of it takes milliseconds where a conversation is long, so it is done on worker threads; any number of them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.engine.assemble import Assembly
from octavo.engine.intake import Prompt, as_prompt
from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.caching import Breakpoint, Caching, End
from octavo.server.prompt_cache.contents import place_names
from octavo.server.prompt_cache.history import bytes_of
from octavo.server.prompt_cache.named import Content
from octavo.server.requests import ChatRequest, PlainRequest
from octavo.text.chat import RenderedChat
from octavo.text.places import Place
from octavo.text.reply import ReplyParser


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the engine.

    Attributes:
        token_ids: of the prompt.
        parsers: one for each of its answers.
        breakpoints: of its prompt.
        names: of what the prompt consists of; see :mod:`octavo.server.prompt_cache.contents`.
        request_bytes: about what the history takes to remember it.
    """

    prompt: Prompt
    token_ids: Sequence[int]
    sampling: SamplingParams
    parsers: list[ReplyParser]
    breakpoints: Sequence[Breakpoint] = ()
    names: Collection[bytes] = ()
    request_bytes: int = 0


class Preparation:
    """Prepares requests for one model. Named caches are no concern of it: requests are whole."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    def prepare(self, request: ChatRequest | PlainRequest) -> Prepared:
        """What the engine computes for ``request``.

        Raises:
            TemplateError, InvalidRequestError: it cannot be rendered, or its answer cannot be held to its format.
        """
        return self._chat(request) if isinstance(request, ChatRequest) else self._plain(request)

    def render(self, request: ChatRequest) -> RenderedChat:
        """The prompt of a conversation.

        Raises:
            TemplateError, InvalidRequestError: the template refuses it.
        """
        return self._assembly.render(
            request.messages,
            tools=request.tools or None,
            continue_final_message=request.continues_final_message,
            chat_template_kwargs=request.template_kwargs or None,
        )

    def beginning(self, content: Content) -> list[int]:
        """The tokens that all prompts begin with that begin with ``content``.

        Raises:
            TemplateError, InvalidRequestError: it cannot be rendered, or the context or the KV memory holds no more.
        """
        if content.text is not None:
            found = self._assembly.tokenizer.encode(content.text)
        else:
            found = self._assembly.render_prefix(content.messages, tools=content.tools or None)
        self._assembly.engine.intake.check_prompt_length(len(found))
        return found

    def prewarming(self, content: Content, token_ids: Sequence[int]) -> Prepared:
        """What computes ``token_ids``, the beginning that ``content`` makes, and answers nothing.

        Raises:
            InvalidRequestError: its tools cannot be called.
        """
        constraint = None
        if content.tools:
            constraint = self._assembly.reply_format.constraint(
                tools=content.tools, tool_choice="required", parallel=True, output=None, in_reasoning=False
            )
        sampling = SamplingParams(max_tokens=0, structured_outputs=constraint)
        return Prepared({"prompt_token_ids": token_ids}, token_ids, sampling, [_plain_parser()])

    def _chat(self, request: ChatRequest) -> Prepared:
        rendered = self.render(request)
        formats = self._assembly.reply_format
        has_tools = bool(request.tools) and request.tool_choice != "none"
        constraint = formats.constraint(
            tools=request.callable_tools,
            tool_choice=request.tool_choice,
            parallel=request.parallel_tool_calls,
            output=request.output,
            in_reasoning=rendered.in_reasoning,
        )
        skip = request.sampling.skip_special_tokens and formats.skip_special_tokens(has_tools)
        sampling = replace(request.sampling, structured_outputs=constraint, skip_special_tokens=skip)
        token_ids, caching = rendered.prompt_token_ids, request.caching
        names = place_names(request) if caching.marks else {}
        return Prepared(
            as_prompt(rendered),
            token_ids,
            _reading(sampling, caching),
            [formats.parser(tools=has_tools, in_reasoning=rendered.in_reasoning) for _ in range(sampling.n)],
            caching.breakpoints(_ends(rendered, caching, names), len(token_ids)),
            frozenset(names.values()),
            bytes_of(request),
        )

    def _plain(self, request: PlainRequest) -> Prepared:
        prompt: Prompt = request.prompt
        if isinstance(prompt, str):
            token_ids = self._assembly.tokenizer.encode(prompt)
            prompt = {"prompt": prompt, "prompt_token_ids": token_ids}
        else:
            token_ids = self._assembly.engine.intake.check_tokens(prompt)
        sampling, caching = request.sampling, request.caching
        parsers = [_plain_parser() for _ in range(sampling.n)]
        breakpoints = caching.breakpoints([], len(token_ids))
        return Prepared(prompt, token_ids, _reading(sampling, caching), parsers, breakpoints)


def _plain_parser() -> ReplyParser:
    return ReplyParser(tool_format=None, reasoning=False)


def _reading(sampling: SamplingParams, caching: Caching) -> SamplingParams:
    return sampling if caching.reads else replace(sampling, skip_reading_prefix_cache=True)


def _ends(rendered: RenderedChat, caching: Caching, names: Mapping[Place, bytes]) -> list[End]:
    """Where the marks stand."""
    places = [mark.place for mark in caching.marks]
    now, later = rendered.ends(places, within_turn=True), rendered.ends(places)
    ends = zip(now, later, rendered.text_ends(places), places, strict=True)
    return [End(at, [end for end in shorter if end < at], names[place]) for at, *shorter, place in ends]
