from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.errors import EngineDeadError, InvalidRequestError, TemplateError
from octavo.llm import LLM

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
MakeAssembly = Callable[..., tuple[Any, Any]]


@pytest.fixture
def llm(make_assembly: MakeAssembly) -> LLM:
    return LLM.from_assembly(make_assembly(blocks=200)[0])


def test_a_prompt_may_be_text_tokens_or_a_mapping(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("abcd")
    forms = ["abcd", {"prompt": "abcd"}, {"prompt_token_ids": tokens}, tokens, tuple(tokens), np.array(tokens)]
    answers = [llm.generate(form, GREEDY) for form in forms]
    assert all(len(answer) == 1 for answer in answers), "a flat list of numbers is one prompt"
    assert len({answer[0].outputs[0].text for answer in answers}) == 1
    assert all(answer[0].prompt_token_ids == tokens for answer in answers)
    assert [answer[0].prompt for answer in answers] == ["abcd", "abcd", None, None, None, None]


def test_many_prompts_come_back_in_their_order(llm: LLM, expected_answer: Callable[..., list[int]]) -> None:
    prompts = [[1 + i % 5] * (1 + 7 * i % 11) for i in range(20)]
    params = [SamplingParams(temperature=0, max_tokens=1 + i % 7, ignore_eos=True) for i in range(20)]
    outputs = llm.generate(prompts, params, priority=[i % 3 for i in range(20)])
    for prompt, param, output in zip(prompts, params, outputs, strict=True):
        assert output.prompt_token_ids == prompt and output.finished
        assert output.outputs[0].token_ids == expected_answer(prompt, param, param.max_tokens)
    assert llm.generate([]) == []
    llm.engine.check_idle()


def test_a_lookup_says_what_a_prompt_would_find_cached(llm: LLM) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7]
    assert llm.lookup(prompt, cache_salt="a") == 0
    llm.generate(prompt, GREEDY, cache_salt="a")
    assert llm.lookup(prompt, cache_salt=b"a") == 6
    assert llm.lookup([*prompt[:5], 1, 1], cache_salt="a") == 5
    assert llm.lookup(prompt) == 0
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        llm.lookup([10**9])
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        llm.lookup(prompt, cache_salt=3)  # type: ignore[arg-type]


def test_metrics_tell_when_things_happened(llm: LLM) -> None:
    metrics = llm.generate("abcd", GREEDY)[0].metrics
    assert metrics.time_in_queue is not None and metrics.time_to_first_token is not None
    assert metrics.total_time is not None
    assert 0 <= metrics.time_in_queue <= metrics.time_to_first_token <= metrics.total_time


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(["ab", [1, 99]], GREEDY),
        lambda llm: llm.generate(["ab", "cd"], [GREEDY]),
        lambda llm: llm.generate(["ab", "cd"], GREEDY, priority=[1, 2, 3]),
        lambda llm: llm.generate("ab", "greedy"),
        lambda llm: llm.generate("ab", []),
        lambda llm: llm.stream("ab", {}),
        lambda llm: llm.generate(7, GREEDY),
        lambda llm: llm.generate("ab", GREEDY, timeout=-1),
        lambda llm: llm.chat({"role": "user"}, GREEDY),
        lambda llm: llm.chat([], GREEDY),
        lambda llm: llm.chat([[{"role": "user", "content": "a"}]] * 2, GREEDY, stream=True),
        lambda llm: llm.stream([], GREEDY),
    ],
)
def test_one_bad_request_among_many_is_refused_before_any_is_computed(llm: LLM, call: Callable[[LLM], object]) -> None:
    with pytest.raises(InvalidRequestError):
        call(llm)
    assert llm.stats().num_requests == 0
    llm.engine.check_idle()


# Streaming and text ----------------------------------------------------------------------------------


def test_joined_increments_are_the_whole_answer(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=20, logprobs=1, ignore_eos=True)
    whole = llm.generate("abcab", params)[0]
    text, tokens, logprobs = ["", "", ""], [[], [], []], [[], [], []]
    increments = list(llm.stream("abcab", params))
    for increment in increments:
        for output in increment.outputs:
            text[output.index] += output.text
            tokens[output.index] += output.token_ids
            logprobs[output.index] += output.logprobs
    assert [increment.finished for increment in increments] == [False] * (len(increments) - 1) + [True]
    for output in whole.outputs:
        assert text[output.index] == output.text
        assert tokens[output.index] == output.token_ids
        assert logprobs[output.index] == output.logprobs


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nothing_of_a_stop_string_leaks_streamed_or_not(llm: LLM, size: int, include: bool) -> None:
    free = llm.generate("abc", SamplingParams(seed=2, max_tokens=30, ignore_eos=True))[0].outputs[0].text
    for start in range(0, len(free) - size, 4):
        stop = free[start : start + size]
        params = SamplingParams(seed=2, max_tokens=30, ignore_eos=True, stop=stop, include_stop_str_in_output=include)
        whole = llm.generate("abc", params)[0].outputs[0]
        assert whole.text == free[: free.index(stop) + (size if include else 0)]
        assert (whole.finish_reason, whole.stop_reason) == ("stop", stop)
        shown = ""
        for increment in llm.stream("abc", params):
            shown += increment.outputs[0].text
            assert whole.text.startswith(shown)
        assert shown == whole.text
    llm.engine.check_idle()


def test_a_stop_string_before_min_tokens_does_not_stop(llm: LLM) -> None:
    free = llm.generate("abc", SamplingParams(seed=2, max_tokens=30, ignore_eos=True))[0].outputs[0].text
    params = SamplingParams(seed=2, max_tokens=30, min_tokens=30, ignore_eos=True, stop=free[2:4])
    assert llm.generate("abc", params)[0].outputs[0].text == free


def test_the_text_of_a_stop_token_is_shown_only_on_request(llm: LLM) -> None:
    allowed = {"allowed_token_ids": [5], "stop_token_ids": [5]}
    hidden = llm.generate("abc", SamplingParams(**allowed))[0].outputs[0]
    shown = llm.generate("abc", SamplingParams(**allowed, include_stop_str_in_output=True))[0].outputs[0]
    assert (hidden.text, hidden.token_ids, hidden.stop_reason) == ("", [5], 5)
    assert shown.text == "e"


def test_a_forgotten_stream_gives_its_blocks_back(llm: LLM) -> None:
    stream = llm.stream("abcd", SamplingParams(max_tokens=None, ignore_eos=True))
    next(stream)
    assert llm.engine.has_unfinished
    del stream
    llm.engine.check_idle()
    llm.stream("abcd", GREEDY)  # never started
    llm.engine.check_idle()


def test_streams_and_whole_answers_may_interleave(llm: LLM) -> None:
    alone = [llm.generate(text, GREEDY)[0].outputs[0].text for text in ("ab", "cd", "ef")]
    first, second = llm.stream("ab", GREEDY), llm.stream("cd", GREEDY)
    texts = ["", ""]
    texts[0] += next(first).outputs[0].text
    texts[1] += next(second).outputs[0].text
    assert llm.generate("ef", GREEDY)[0].outputs[0].text == alone[2]
    texts[1] += "".join(output.outputs[0].text for output in second)
    texts[0] += "".join(output.outputs[0].text for output in first)
    assert texts == alone[:2]


def test_threads_may_share_one_llm(llm: LLM) -> None:
    prompts = [f"abc{letter}" for letter in "abcdefgh"]
    alone = [llm.generate(prompt, GREEDY)[0].outputs[0].text for prompt in prompts]
    together: dict[str, str] = {}

    def ask(prompt: str) -> None:
        together[prompt] = llm.generate(prompt, GREEDY)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert [together[prompt] for prompt in prompts] == alone
    llm.engine.check_idle()


# Chat ------------------------------------------------------------------------------------------------


def test_chat_answers_one_conversation_or_several_and_streams_one(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cd"}]
    conversation += [{"role": "user", "content": "ba"}]
    one = llm.chat(conversation, GREEDY)
    assert one[0].prompt == "u abc\na cd\nu ba\na "
    several = llm.chat([conversation, conversation[:1]], GREEDY)
    assert [output.prompt for output in several] == [one[0].prompt, "u abc\na "]
    assert several[0].outputs[0].text == one[0].outputs[0].text
    streamed = "".join(output.outputs[0].text for output in llm.chat(conversation, GREEDY, stream=True))
    assert streamed == one[0].outputs[0].text


def test_a_partial_assistant_turn_is_continued_without_a_new_marker(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cd"}]
    assert llm.chat(conversation, GREEDY, continue_final_message=True)[0].prompt == "u abc\na cd"


def test_documents_and_variables_reach_the_chat_template(llm: LLM) -> None:
    template = "{{ messages[0].content }}{% for d in documents %}{{ d.text }}{% endfor %}{{ ending }}"
    rendered = llm.render(
        [{"role": "user", "content": "ab"}],
        chat_template=template,
        documents=[{"text": "c"}],
        chat_template_kwargs={"ending": "d"},
    )
    assert rendered.text == "abcd"
    with pytest.raises(InvalidRequestError, match="argument of its own") as refused:
        llm.render([{"role": "user", "content": "ab"}], chat_template_kwargs={"documents": []})
    assert refused.value.param == "chat_template_kwargs.documents"


def test_a_chat_template_may_be_given(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "abc"}]
    assert llm.render(conversation, chat_template="{{ messages[0].content }}!").text == "abc!"
    with pytest.raises(TemplateError):
        llm.chat(conversation, GREEDY, chat_template="{% if %}")


# Ends ------------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_an_idle_engine_that_goes_on(make_assembly: MakeAssembly) -> None:
    assembly, runner = make_assembly()
    llm = LLM.from_assembly(assembly)
    execute, calls = runner.execute, []

    def interrupted(batch: object) -> object:
        calls.append(batch)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return execute(batch)

    runner.execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "bcd", "cde"], GREEDY)
    llm.engine.check_idle()
    assert llm.generate("abc", GREEDY)[0].finished


def test_a_failure_reaches_the_caller_with_its_reason(make_assembly: MakeAssembly) -> None:
    assembly, runner = make_assembly()
    llm = LLM.from_assembly(assembly)
    runner.fail_at = 2
    with pytest.raises(EngineDeadError, match="on fire") as died:
        llm.generate("abc", GREEDY)
    assert isinstance(died.value.__cause__, MemoryError)
    with pytest.raises(EngineDeadError, match="on fire"):
        llm.generate("abc", GREEDY)


def test_a_closed_llm_says_so(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    with llm:
        next(stream)
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("abc", GREEDY)
    with pytest.raises(EngineDeadError, match="closed"):
        next(stream)
    llm.close()


def test_the_progress_bar_is_shown_on_request_and_never_by_itself_off_a_terminal(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(["abc", "bcd"], GREEDY)
    assert capsys.readouterr().err == ""
    llm.generate(["abc", "bcd"], GREEDY, use_tqdm=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err and "20 tokens" in captured.err and captured.out == ""


def test_the_summary_says_what_was_planned_and_allocated(llm: LLM) -> None:
    summary = llm.summary
    assert summary.planned_bytes == summary.allocated_bytes == summary.num_blocks * summary.block_bytes
    assert f"{summary.num_blocks} blocks" in str(summary) and f"{summary.num_tokens} tokens" in str(summary)
