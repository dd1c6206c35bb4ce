"""What clients of one API can do: those of OpenAI, Anthropic and Ollama, and LiteLLM, which knows all three."""

from __future__ import annotations

from typing import Any

from .client_calls import CITY, HELLO, LONG, PERSON, TOOL, check_person, person, raises
from .scripted import SCHEMA


def openai_client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def openai_chat(url: str) -> None:
    with openai_client(url) as client:
        found = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
        assert found.usage.completion_tokens == 4
        assert client.responses.create(model="tiny", input="hello", max_output_tokens=4).output_text


def openai_stream(url: str) -> None:
    with openai_client(url) as client:
        found = [*client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, stream=True)]
        assert found[-1].choices[0].finish_reason == "length"


def openai_tools(url: str) -> None:
    with openai_client(url) as client:
        found = client.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL])
        assert found.choices[0].message.tool_calls[0].function.name == "weather"


def openai_structured(url: str) -> None:
    with openai_client(url) as client:
        found = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=person(), max_tokens=400)
        assert found.choices[0].message.parsed.home.city in ("Riga", "Oslo")
        given = client.responses.parse(model="tiny", input="hello", text_format=person(), max_output_tokens=400)
        assert given.output_parsed.age < 100


def openai_embeddings(url: str) -> None:
    with openai_client(url) as client:
        assert len(client.embeddings.create(model="tiny", input=["a"], dimensions=8).data[0].embedding) == 8


def openai_errors(url: str) -> None:
    import openai

    with openai_client(url) as client:
        raises(openai.NotFoundError, lambda: client.models.retrieve("none"))
        create = client.chat.completions.create
        raises(openai.BadRequestError, lambda: create(model="tiny", messages=LONG), "maximum context length")


def _anthropic(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def anthropic_chat(url: str) -> None:
    with _anthropic(url) as client:
        assert client.messages.create(model="tiny", messages=HELLO, max_tokens=4).usage.output_tokens == 4
        assert [model.id for model in client.models.list()] == ["tiny"]


def anthropic_stream(url: str) -> None:
    with _anthropic(url) as client, client.messages.stream(model="tiny", messages=HELLO, max_tokens=4) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def anthropic_tools(url: str) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with _anthropic(url) as client:
        found = client.messages.create(model="tiny", messages=HELLO, max_tokens=64, tools=[tool])
        assert found.content[-1].input == CITY


def anthropic_structured(url: str) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": PERSON}}
    with _anthropic(url) as client:
        found = client.messages.create(model="tiny", messages=HELLO, max_tokens=400, output_config=config)
        check_person(found.content[0].text)


def anthropic_errors(url: str) -> None:
    import anthropic

    with _anthropic(url) as client:
        create = client.messages.create
        raises(
            anthropic.BadRequestError, lambda: create(model="tiny", messages=LONG, max_tokens=4), "prompt is too long"
        )


def _ollama(url: str) -> Any:
    import ollama

    return ollama.Client(host=url)


def ollama_chat(url: str) -> None:
    assert _ollama(url).chat("tiny", HELLO, options={"num_predict": 4}).eval_count == 4
    assert _ollama(url).list().models[0].model == "tiny:latest"


def ollama_stream(url: str) -> None:
    assert [*_ollama(url).chat("tiny", HELLO, stream=True, options={"num_predict": 4})][-1].done


def ollama_tools(url: str) -> None:
    (call,) = _ollama(url).chat("tiny", HELLO, tools=[TOOL]).message.tool_calls
    assert call.function.arguments == CITY


def ollama_structured(url: str) -> None:
    check_person(_ollama(url).chat("tiny", HELLO, format=PERSON, options={"num_predict": 400}).message.content)


def ollama_embeddings(url: str) -> None:
    assert len(_ollama(url).embed("tiny", ["a", "b"]).embeddings) == 2


def ollama_errors(url: str) -> None:
    import ollama

    raises(ollama.ResponseError, lambda: _ollama(url).chat("none", HELLO), "there is no model")


def _litellm(url: str, **more: Any) -> Any:
    import litellm

    asked = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "none", "messages": HELLO, "max_tokens": 8}
    return litellm.completion(**{**asked, **more})


def litellm_chat(url: str) -> None:
    assert _litellm(url).usage.completion_tokens == 8
    for provider in ("ollama_chat", "anthropic"):
        assert _litellm(url, model=f"{provider}/tiny", api_base=url).choices[0].message.content


def litellm_stream(url: str) -> None:
    assert [*_litellm(url, stream=True)][-1].choices[0].finish_reason == "length"


def litellm_tools(url: str) -> None:
    assert _litellm(url, tools=[TOOL]).choices[0].message.tool_calls[0].function.name == "weather"


def litellm_structured(url: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    check_person(_litellm(url, response_format=schema, max_tokens=400).choices[0].message.content)


def litellm_embeddings(url: str) -> None:
    import litellm

    found = litellm.embedding(model="openai/tiny", input=["a"], api_base=f"{url}/v1", api_key="none")
    assert found.data[0]["embedding"]


def litellm_errors(url: str) -> None:
    import litellm

    raises(litellm.ContextWindowExceededError, lambda: _litellm(url, messages=LONG))
    anthropic = {"model": "anthropic/tiny", "api_base": url, "messages": LONG}
    raises(litellm.ContextWindowExceededError, lambda: _litellm(url, **anthropic))
