"""The grammar of a reply: free text and calls, calls only, no calls; reasoning before any of them.

Written in llguidance's dialect of Lark (see :mod:`octavo.text.grammar`). Where the marker of a call is text, free text
runs up to it and is cut there by a lazy rule; where it is a special token, no text can hold it anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.text.grammar import StructuredOutputsParams
from octavo.text.reasoning import END_THINK, THINK
from octavo.text.tools.tool_format import ToolFormat
from octavo.text.tools.toolset import Tool

Calls = Literal["may", "must", "not"]

_NAME_FIRST = r"\s*\{\s*\"name\""  # how a call without a marker begins
_ANY = "(?s:.*)"


@dataclass(slots=True)
class ReplyGrammar:
    """Writes the grammar of one reply.

    Attributes:
        special_id: the id of a marker that is a special token, ``None`` where it is text.
        calls: whether the reply may, must or must not call.
        parallel: more than one call is allowed.
        output: what the answer must be where it does not call.
    """

    tool_format: ToolFormat
    special_id: Callable[[str], int | None]
    tools: Sequence[Tool]
    calls: Calls
    parallel: bool
    output: StructuredOutputsParams | None
    _rules: list[str] = field(default_factory=list)

    def lark(self, *, reasoning: bool, in_reasoning: bool) -> str:
        """The whole grammar. ``reasoning``: a block of reasoning may come first, or (``in_reasoning``) is open."""
        is_strict = self.calls == "must" or self.output is not None
        answer = self._answer()
        thinking = ""
        if reasoning:
            thinking = "thought " if in_reasoning else "(think thought)? "
            # Free text holds the line breaks behind the block itself.
            self._rules += self._reasoning_rules("GAP?" if is_strict else "")
        return "\n".join([f"start: {thinking}answer", f"answer: {answer}", *self._rules, ""])

    def _answer(self) -> str:
        if self.calls != "not":
            self._rules.append(f"call: {' | '.join(self._call_rules())}")
        if self.output is not None:
            output = self._output_rule(self.output)
            return output if self.calls == "not" else f"{output} | {self._blocks()}"
        if self.calls == "must":
            return self._blocks()
        if self.calls == "not":
            return self._text(forbidden=self._text_that_calls())
        return self._text_and_blocks()

    def _blocks(self) -> str:
        """Calls and nothing else."""
        form = self.tool_format
        begin = self._begin()
        if form.joiner is not None:
            more = f" ({_quoted(form.joiner)} call)*" if self.parallel else ""
            return f"{begin} {self._literal(form.opening)} call{more} {self._literal(form.closing)}"
        block = f"{begin} {self._literal(form.opening)} call {self._literal(form.closing)}"
        if not self.parallel or form.bare:
            return block
        return f"{block} ({self._literal(form.between)} {block})*"

    def _text_and_blocks(self) -> str:
        """Free text, and calls wherever their marker is written."""
        form = self.tool_format
        if form.bare:
            return f"{self._text(self._text_that_calls())} | {self._blocks()}"
        text = self._text()
        more = f" ({_quoted(form.joiner)} call)*" if self.parallel and form.joiner is not None else ""
        rest = f"{self._literal(form.opening)} call{more} {self._literal(form.closing)}"
        is_text = self.special_id(form.begin) is None
        if is_text:
            self._rules.append(f"head[lazy]: /{_ANY}{_pattern(form.begin)}/")
        head = "head" if is_text else f"{text} {self._begin()}"
        if self.parallel and form.joiner is None:
            return f"({head} {rest})* {text}"
        return f"{text} | {head} {rest}"

    def _text_that_calls(self) -> str:
        """The pattern of what free text must not hold, so that it makes no call."""
        if self.tool_format.bare:
            return f"{_NAME_FIRST}{_ANY}"
        if self.special_id(self.tool_format.begin) is not None:
            return ""
        return f"{_ANY}{_pattern(self.tool_format.begin)}{_ANY}"

    def _text(self, forbidden: str = "") -> str:
        but = f" & ~/{forbidden}/" if forbidden else ""
        self._rules.append(f"TEXT: /(?s:.+)/{but}")
        return "TEXT?"

    def _begin(self) -> str:
        marker = self.tool_format.begin
        if not self.tool_format.bare:
            return self._literal(marker)
        token = self.special_id(marker)
        return "" if token is None else f"<[{token}]>?"

    def _call_rules(self) -> list[str]:
        """A rule for each tool; their names."""
        form = self.tool_format
        if form.bare and self.output is not None:
            # Both begin with a brace: two schemas can be told apart later, a text and a schema cannot.
            return [self._whole_call(index, tool) for index, tool in enumerate(self.tools)]
        for index, tool in enumerate(self.tools):
            after = self._literal(form.after_arguments)
            self._rules.append(f"call_{index}: {self._literal(form.head(tool.name))} arguments_{index} {after}")
            self._rules.append(f"arguments_{index}: %json {tool.schema}")
        return [f"call_{index}" for index in range(len(self.tools))]

    def _whole_call(self, index: int, tool: Tool) -> str:
        key = re.findall(r'"(\w+)"', self.tool_format.before_arguments)[-1]
        arguments = json.loads(tool.schema)
        definitions = {
            name: arguments.pop(name) for name in ("$defs", "definitions", "x-guidance") if name in arguments
        }
        properties = {"name": {"const": tool.name}, key: arguments}
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["name", key],
            "additionalProperties": False,
            **definitions,
        }
        self._rules.append(f"call_{index}: %json {json.dumps(schema)}")
        return f"call_{index}"

    def _output_rule(self, output: StructuredOutputsParams) -> str:
        if output.json is not None:
            rule = f"output: %json {output.json}"
        elif output.json_object:
            rule = 'output: %json {"type": "object"}'
        elif output.regex is not None:
            rule = f"output: OUTPUT\nOUTPUT: /(?:{_slashes_escaped(output.regex)})/"
        elif output.choice is not None:
            rule = "output: " + " | ".join(map(_quoted, output.choice))
        else:
            rule = f"output: %lark {{\n{output.grammar}\n}}"
        self._rules.append(rule)
        return "output"

    def _reasoning_rules(self, gap: str) -> list[str]:
        begin, end = self.special_id(THINK), self.special_id(END_THINK)
        thought = [f"thought: thinking {gap}", f"thinking[lazy]: /{_ANY}{_pattern(END_THINK)}/"]
        if end is not None:
            thought = [f"thought: THINKING? <[{end}]> {gap}", "THINKING: /(?s:.+)/"]
        think = f"think[lazy]: {_quoted(THINK)}" if begin is None else f"think: <[{begin}]>"
        return [think, *thought, *(["GAP: /\\n{1,2}/"] if gap else [])]

    def _literal(self, text: str) -> str:
        """``text`` as a rule has it: its special tokens by number, the rest quoted."""
        markers = [marker for marker in self.tool_format.tokens if self.special_id(marker) is not None]
        pieces = re.split(f"({'|'.join(map(re.escape, markers))})", text) if markers else [text]
        return " ".join(
            f"<[{self.special_id(piece)}]>" if piece in markers else _quoted(piece) for piece in pieces if piece
        )


def _quoted(text: str) -> str:
    return json.dumps(text)


def _pattern(text: str) -> str:
    return _slashes_escaped(re.sub(r"([^\w<>])", r"\\\1", text))


def _slashes_escaped(regex: str) -> str:
    """A regular expression as it may stand between slashes, on one line."""
    spelt = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
    return re.sub(r"\\.|[/\n]", lambda match: spelt.get(match[0], match[0]), regex, flags=re.DOTALL)
