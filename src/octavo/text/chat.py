"""ChatTemplate: a conversation rendered as the model was taught, tokenised as a whole, its parts marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from octavo.errors import InvalidRequestError, TemplateError, shown
from octavo.text.cuts import TokenCuts
from octavo.text.messages import (
    Message,
    checked_messages,
    checked_objects,
    flattened,
    plain,
    text_parts,
    with_parts,
)
from octavo.text.places import Place, PlaceFinder
from octavo.text.prefixes import PrefixStability, shared_tokens, stability
from octavo.text.reasoning import ends_open
from octavo.text.segments import Conversation, Render, Segment, find_segments
from octavo.text.templating import CompiledTemplate
from octavo.text.tokenizer import TemplateSource, Tokenizer, check_text
from octavo.text.tools.detect import ToolSupport, detect
from octavo.text.tools.rendering import adapted
from octavo.text.tools.tool_format import ToolFormat

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_OPEN_END = "OCTAVO_OPEN_END "  # the trailing space shows whether the template trims the content it is appended to


class RenderedChat:
    """A rendered conversation.

    Attributes:
        text: what the template wrote.
        prompt_token_ids: ``text`` tokenised once, as a whole; nothing is added around it (templates write
            bos).
    """

    def __init__(self, conversation: Conversation, tokenizer: Tokenizer) -> None:
        self.text = conversation.text
        self._conversation = conversation
        self._encoding = tokenizer.encoding(conversation.text, add_special_tokens=False)
        self.prompt_token_ids: list[int] = self._encoding.ids
        self._tokenizer = tokenizer

    def segments(self) -> list[Segment]:
        """Tools, system blocks and messages with their characters and tokens, in that order, without gaps.

        Worked out on the first call: the template runs again for each of them. What comes after the last
        message (the generation prompt) belongs to none. See :mod:`octavo.text.segments` for where boundaries
        fall.
        """
        return list(self._segments)

    def ends(self, places: Sequence[Place], *, within_turn: bool = False) -> list[int]:
        """For each place the number of tokens up to its end, a place of the prompt's order never after a later one.

        Those tokens are the prompt's first whatever comes after the place: other parts, calls, messages, or none.
        Two renders for each place, which are remembered. See :mod:`octavo.text.places`.

        Args:
            places: in any order; equal ones cost nothing.
            within_turn: only what may follow within the same turn is reckoned with: calls, results, the reply.
                Later where a template rewrites a turn once the next one begins (drops its reasoning).

        Raises:
            InvalidRequestError: there is no such place in this conversation.
        """
        return self._places.ends(places, within_turn)

    def text_ends(self, places: Sequence[Place]) -> list[int]:
        """For each place the number of tokens that stay the prompt's first if more texts follow in its message.

        As :meth:`ends` for all but a message's last text, which ends there with its message. Renders nothing that
        :meth:`ends` has not.
        """
        return self._places.text_ends(places)

    def segment_at(self, token_index: int) -> Segment | None:
        """The segment in which a token of the prompt lies; ``None``: it comes after all of them.

        Costs what :meth:`segments` does.
        """
        return next((segment for segment in self._segments if token_index < segment.end_token), None)

    def text_around(self, token_index: int, radius: int = 40) -> tuple[str, str]:
        """Up to ``radius`` characters before the beginning of a token, and from it on.

        From the end of the text where the prompt has no such token.
        """
        is_there = 0 <= token_index < len(self.prompt_token_ids)
        chars = self._encoding.token_to_chars(token_index) if is_there else None
        at = len(self.text) if chars is None else chars[0]
        return self.text[max(0, at - radius) : at], self.text[at : at + radius]

    @property
    def in_reasoning(self) -> bool:
        """Whether it ends inside an open ``<think>`` block, which the reply then goes on with."""
        last = text_parts(self._conversation.messages[-1]) if self._conversation.ends_open else []
        return ends_open(self.text, last[-1] if last else "")

    @cached_property
    def _segments(self) -> list[Segment]:
        return find_segments(self._conversation, self._encoding.offsets)

    @cached_property
    def _places(self) -> PlaceFinder:
        cuts = TokenCuts(self.text, self._encoding, self.prompt_token_ids, self._tokenizer)
        return PlaceFinder(self._conversation, cuts)


class ChatTemplate:
    """A model's chat template, compiled. Safe to use from several threads.

    Text parts: where the template takes ``content`` as a list of parts it gets the list, as in transformers;
    where it does not, the texts are joined by a line break. Which of the two is found by trying, per role.

    Tools: what the template shows of tools, calls and their results is its own affair; what it does not show is
    written into the messages (see :mod:`octavo.text.tools.rendering`). That too is found by trying.
    """

    def __init__(self, source: TemplateSource | None, tokenizer: Tokenizer) -> None:
        """``source``: a template, or several by name, of which ``tool_use`` serves requests with tools and
        ``default`` all others. It sees ``tokenizer.special_tokens`` as variables.

        Raises:
            TemplateError: there is none (``None``), or one is not valid jinja2.
        """
        if source is None or (isinstance(source, (str, Mapping)) and not source):
            raise TemplateError(
                "this model has no chat template; give one as chat_template, or send a plain prompt",
                param="chat_template",
            )
        sources = {"default": source} if isinstance(source, str) else _checked_sources(source)
        self._templates = {name: _Template(text, tokenizer.special_tokens) for name, text in sources.items()}
        self._tokenizer = tokenizer
        self._stability: dict[bool, PrefixStability] = {}

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes a call, as far as its template tells."""
        return self._pick(True).support.tool_format

    def mentions(self, *texts: str) -> bool:
        """Whether one of the templates has all of ``texts`` in its source."""
        return any(all(text in template.source for text in texts) for template in self._templates.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Render ``messages`` as ``transformers``' ``apply_chat_template`` does.

        Args:
            messages: see :func:`octavo.text.messages.checked_messages`. Cache markers are taken off.
            tools: JSON objects, as the template wants them; cache markers are taken off. A template that takes none
                gets them as text.
            documents: for templates that take some.
            add_generation_prompt: end with the beginning of an assistant message.
            continue_final_message: end inside the last message, which the model then continues; no marker
                closes it. Set ``add_generation_prompt=False`` with it.
            chat_template_kwargs: further variables for the template, such as ``enable_thinking``.

        Raises:
            InvalidRequestError: the arguments are not of that form; ``param`` says where.
            TemplateError: the template refuses this conversation, or drops what is to be continued.
        """
        for name, flag in (
            ("add_generation_prompt", add_generation_prompt),
            ("continue_final_message", continue_final_message),
        ):
            if not isinstance(flag, bool):
                raise InvalidRequestError(f"{name} must be True or False; got {shown(flag)}", param=name)
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "continue_final_message continues the last message, add_generation_prompt begins another; "
                "set one of them",
                param="continue_final_message",
            )
        conversation, tool_list = checked_messages(messages), checked_objects(tools, "tools")
        render = self._renderer(
            tool_list is not None,
            {**_checked_kwargs(chat_template_kwargs), "documents": checked_objects(documents, "documents")},
            add_generation_prompt,
            continue_final_message,
        )
        text = render(conversation, tool_list, True)
        check_text(text, "messages")
        return RenderedChat(
            Conversation(text, conversation, tool_list, render, continue_final_message), self._tokenizer
        )

    def prefix_tokens(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The token ids that every conversation begins with which begins with these messages and tools.

        They are as :meth:`render` takes them; ``messages`` may be empty where there are tools.

        Raises:
            InvalidRequestError: the arguments are not of that form; ``param`` says where.
            TemplateError: the template refuses this conversation.
        """
        tool_list = checked_objects(tools, "tools")
        is_empty = isinstance(messages, Sequence) and not isinstance(messages, str) and not messages
        conversation = [] if is_empty and tool_list else checked_messages(messages)
        render = self._renderer(tool_list is not None, {"documents": None})
        return shared_tokens(render, conversation, tool_list, self._tokenizer)

    def prefix_stability(self, with_tools: bool = False) -> PrefixStability:
        """Whether a prompt with its reply is the beginning of the next turn's prompt, in conversations with tools or
        without; found by trying, once.

        Raises:
            TemplateError: there is no template for such conversations.
        """
        if with_tools not in self._stability:
            render = self._renderer(with_tools, {"documents": None}, add_generation_prompt=True)
            self._stability[with_tools] = stability(render, with_tools)
        return self._stability[with_tools]

    def _renderer(
        self,
        has_tools: bool,
        variables: Mapping[str, Any],
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
    ) -> Render:
        """Render any messages with any tools, in the template for conversations with tools or without."""
        template = self._pick(has_tools)
        shared = {**self._tokenizer.special_tokens, **variables}

        def render(messages: list[Message], tools: list[dict[str, Any]] | None, whole: bool) -> str:
            return template.render(
                messages,
                {**shared, "tools": tools, "add_generation_prompt": add_generation_prompt and whole},
                open_end=continue_final_message and whole,
            )

        return render

    def _pick(self, has_tools: bool) -> _Template:
        if has_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            raise TemplateError(
                f"this model has chat templates named {', '.join(sorted(self._templates))} "
                "and none named 'default'; give one",
                param="chat_template",
            )
        return self._templates["default"]


class _Template:
    """One template with what has been found out about it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._compiled = CompiledTemplate(source)
        self._special_tokens = special_tokens
        self._takes_lists: dict[str, bool] = {}

    @cached_property
    def support(self) -> ToolSupport:
        return detect(self._probe, self.source)

    def render(self, messages: list[Message], variables: dict[str, Any], open_end: bool) -> str:
        tools = variables["tools"]
        if tools or any(message["role"] == "tool" or "tool_calls" in message for message in messages):
            messages = adapted(messages, tools, self.support)
            if not self.support.shows_tools:
                variables = {**variables, "tools": None}
        messages = [self._adapted(message) for message in messages]
        if not open_end:
            return self._compiled.render({**variables, "messages": messages})
        parts = text_parts(messages[-1]) if "content" in messages[-1] else []
        if not parts:
            raise InvalidRequestError("the last message has no content to continue", param="messages")
        messages[-1] = with_parts(messages[-1], [*parts[:-1], parts[-1] + _OPEN_END])
        return _cut_open(self._compiled.render({**variables, "messages": messages}), parts[-1])

    def _adapted(self, message: Message) -> Message:
        if isinstance(message.get("content", ""), str):
            return message
        role = message["role"]
        if role not in self._takes_lists:
            self._takes_lists[role] = self._try_list(role)
        return message if self._takes_lists[role] else flattened(message)

    def _try_list(self, role: str) -> bool:
        """Whether a list of two texts comes out as two texts, and not as Python or JSON."""
        first, second = "OCTAVO_FIRST_PART", "OCTAVO_SECOND_PART"
        probe: Message = {"role": role, "content": [{"type": "text", "text": first}, {"type": "text", "text": second}]}
        user = {"role": "user", "content": "x"}
        messages = {"user": [probe], "system": [probe, user], "developer": [probe, user]}.get(role, [user, probe])
        try:
            text = self._probe(messages, None)
        except TemplateError:
            return False
        _, found, rest = text.partition(first)
        between, found_too, _ = rest.partition(second)
        return bool(found and found_too) and "'type'" not in between and '"type"' not in between

    def _probe(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        fixed = {"documents": None, "add_generation_prompt": False}
        return self._compiled.render({**self._special_tokens, **fixed, "messages": messages, "tools": tools})


def _cut_open(rendered: str, last_text: str) -> str:
    """What precedes the mark of the open end: the text so far, without whatever closes the message."""
    mark = _OPEN_END.rstrip()
    at = rendered.rfind(mark)
    if at < 0 or last_text.strip() not in rendered:
        raise TemplateError(
            "the last message cannot be continued: the chat template does not show all of it",
            param="messages",
        )
    return rendered[:at] if rendered.startswith(_OPEN_END, at) else rendered[:at].rstrip()


def _checked_sources(sources: object) -> dict[str, str]:
    """Several templates by name."""
    if not isinstance(sources, Mapping) or not all(isinstance(text, str) for item in sources.items() for text in item):
        raise TemplateError(
            f"a chat template is a text, or several texts by name; got {shown(sources)}", param="chat_template"
        )
    return dict(sources)


def _checked_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise InvalidRequestError(
            f"a template's variables are a mapping from their names; got {shown(kwargs)}", param="chat_template_kwargs"
        )
    taken = next((name for name in _RESERVED if name in kwargs), None)
    if taken is not None:
        raise InvalidRequestError(
            f"{taken} is an argument of its own, not a variable of the template",
            param=f"chat_template_kwargs.{taken}",
        )
    copy: dict[str, Any] = plain(kwargs, "chat_template_kwargs")
    return copy
